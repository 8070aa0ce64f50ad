/**
 * Looks around while calls wait: whether another replica became active, and which endpoints there are.
 *
 * A replica that is frozen or cut off ends no connection. So once a call has waited for a while, a client with several endpoints
 * asks all of them which replica is active, and gives up what waits for one that was replaced. It is sent to the new active with the
 * same ids.
 */

import * as http from "node:http";
import * as https from "node:https";

import { bearerHeader, type Bearer, type TlsOptions } from "./access.js";
import { type Endpoints, seesNobody, usable } from "./endpoints.js";
import { readBody } from "./exchange.js";
import { type Json, parseJson } from "./reading.js";
import { clockS } from "./retry.js";

const TICK_S = 0.25;
const WAIT_MAX_S = 1; // of a call, until its client looks around; and between two looks
/** Of a feed: the server's checkpoints come every 10 s (`api.checkpoint_s`). */
export const QUIET_MAX_S = 12;
const ASK_MAX_S = 1;
const REFRESH_EVERY_S = 30;
const REFRESH_AGAIN_S = 5; // after one that failed
const DOCUMENT_MAX_BYTES = 65_536;

/** Something that waits for an endpoint since a time; infinity: it waits for nothing now. */
export class Waiting {
  sinceS = clockS();
  /** So long it waits where all is well. A feed is quiet while nothing is published. */
  usualS = WAIT_MAX_S;
  /** Ends what waits. May be repeated. */
  giveUp: (why: Error) => void = () => undefined;

  constructor(readonly endpoint: string) {}
}

/**
 * The endpoints that lead to the active replica, by what each answered, in their order: several, where one is of a balancer. A
 * deposed replica that has not noticed has an older epoch.
 */
export function newestActive(found: readonly (readonly [string, Json | null])[]): string[] {
  const epochOf = (document: Json | null): number =>
    document?.["active"] === true && typeof document["epoch"] === "number" ? document["epoch"] : -Infinity;
  const newest = Math.max(...found.map(([, document]) => epochOf(document)));
  return found.filter(([, document]) => newest > -Infinity && epochOf(document) === newest).map(([endpoint]) => endpoint);
}

/** Runs beside a client that has several endpoints, until it is closed. Its connections are its own: the client's may all be waiting. */
export class Lookout {
  readonly #waiting = new Set<Waiting>();
  readonly #agent: http.Agent | https.Agent;
  readonly #isTls: boolean;
  readonly #ticks: NodeJS.Timeout;
  #busy = false;
  #lookedAtS = -Infinity;
  #refreshAtS = -Infinity;

  constructor(
    private readonly endpoints: Endpoints,
    private readonly bearer: Bearer,
    tls: TlsOptions,
  ) {
    this.#isTls = endpoints.current.startsWith("https:");
    this.#agent = this.#isTls ? new https.Agent({ keepAlive: true, ...tls }) : new http.Agent({ keepAlive: true });
    this.#ticks = setInterval(() => void this.#tick(), TICK_S * 1000).unref();
    void this.#tick();
  }

  close(): void {
    clearInterval(this.#ticks);
    this.#agent.destroy();
  }

  /** Watch over this one, until `remove`. */
  add(waiting: Waiting): void {
    this.#waiting.add(waiting);
  }

  /** Its wait is over. May be repeated. */
  remove(waiting: Waiting): void {
    this.#waiting.delete(waiting);
  }

  async #tick(): Promise<void> {
    if (this.#busy) return;
    this.#busy = true;
    try {
      const nowS = clockS();
      const overdue = [...this.#waiting].some((one) => nowS - one.sinceS >= one.usualS);
      if (overdue && nowS - this.#lookedAtS >= WAIT_MAX_S) {
        this.#lookedAtS = nowS;
        await this.#look();
      }
      if (nowS >= this.#refreshAtS) {
        const done = await this.#refresh().catch(() => false); // of the token's source, for one
        this.#refreshAtS = clockS() + (done ? REFRESH_EVERY_S : REFRESH_AGAIN_S);
      }
    } finally {
      this.#busy = false;
    }
  }

  /** Turn to the active, and give up what waits elsewhere. This call needs no token, and gets none. */
  async #look(): Promise<void> {
    const ask = async (one: string): Promise<[string, Json | null]> => [one, await this.#fetch(`${one}/v1/notary`, undefined).catch(() => null)];
    const active = newestActive(await Promise.all(this.endpoints.known.map(ask)));
    const [first] = active;
    if (first === undefined) return;
    if (!active.includes(this.endpoints.current)) this.endpoints.prefer(first);
    const givenUpS = clockS() - WAIT_MAX_S;
    for (const waiting of [...this.#waiting]) {
      if (!active.includes(waiting.endpoint)) {
        if (waiting.sinceS <= givenUpS) waiting.giveUp(new Error("another replica is active"));
      } else if (waiting.usualS > WAIT_MAX_S) {
        waiting.sinceS = Math.max(waiting.sinceS, this.#lookedAtS); // its server answered us instead
      }
    }
  }

  /** Ask for the list of endpoints; false when it was not given. The one before stays in force then. */
  async #refresh(): Promise<boolean> {
    const token = await this.bearer.token();
    const list = await this.#fetch(`${this.endpoints.current}/v1/endpoints`, token);
    if (list === null || seesNobody(list)) return false;
    this.endpoints.takeList(usable(list, this.endpoints.configured, token !== undefined));
    return true;
  }

  /** The document at a URL; null when there is none in time, or what comes is something else. */
  #fetch(url: string, token: string | undefined): Promise<Json | null> {
    return new Promise((resolve) => {
      const make = this.#isTls ? https.request : http.request;
      const request = make(url, { agent: this.#agent, headers: bearerHeader(token) });
      const limit = setTimeout(() => request.destroy(new Error("no answer in time")), ASK_MAX_S * 1000);
      const end = (found: Json | null): void => {
        clearTimeout(limit);
        resolve(found);
      };
      request.on("error", () => end(null));
      request.once("response", (response) => {
        const read = readBody(response, DOCUMENT_MAX_BYTES).then(parseJson);
        read.then((found) => end(response.statusCode === 200 ? found : null)).catch(() => end(null));
      });
      request.end();
    });
  }
}
