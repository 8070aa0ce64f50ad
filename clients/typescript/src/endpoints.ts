/**
 * The addresses of one notary, and which of them is used now.
 *
 * A connection string names one endpoint, or several with one scheme: `https://a:8080,b:8080,c:8080/`.
 */

import { ConfigError } from "./errors.js";
import { problemIn, type Json } from "./reading.js";

const ENDPOINTS_MAX = 16;
const FORM = /^(https?):\/\/([^/?#\s]+)((?:\/[^/?#\s,]+)*)\/?$/;
const EXAMPLE = "https://notary.example:8080 or https://a.example:8080,b.example:8080";

/** A connection string, or a list of them with one endpoint each. */
export type Given = string | readonly string[];

/** The endpoints as URLs without a final slash, in their order. Throws ConfigError. */
export function parseEndpoints(given: Given): readonly string[] {
  const found = typeof given === "string" ? parse(given) : given.map(parseOne);
  if (found.length === 0) throw new ConfigError(`no endpoint is given; one is like ${EXAMPLE}`);
  if (found.length > ENDPOINTS_MAX) throw new ConfigError(`${found.length} endpoints are given, at most ${ENDPOINTS_MAX} may be`);
  if (new Set(found).size !== found.length) throw new ConfigError(`an endpoint is given twice: ${found.join(", ")}`);
  if (new Set(found.map(schemeOf)).size !== 1) throw new ConfigError(`all endpoints have http, or all of them https: ${found.join(", ")}`);
  return found;
}

function parseOne(given: string): string {
  const found = parse(given);
  if (found.length !== 1) throw new ConfigError(`in a list each text is one endpoint, not '${given}'`);
  return found[0] as string;
}

/** No error repeats a password. */
function parse(given: string): string[] {
  if (given.includes("@")) throw new ConfigError(`an endpoint has no user and no password; it is like ${EXAMPLE}`);
  const form = FORM.exec(given);
  if (form === null) throw new ConfigError(`the endpoint '${given.slice(0, 300)}' is not like ${EXAMPLE}: the scheme once, no query`);
  const [, scheme = "", hosts = "", path = ""] = form;
  return hosts.split(",").map((host) => urlOf(scheme, host, path));
}

function urlOf(scheme: string, host: string, path: string): string {
  const url = `${scheme}://${host}${path}`;
  if (host === "" || host.endsWith(":") || host.endsWith(":0") || !URL.canParse(url)) {
    throw new ConfigError(`'${host.slice(0, 300)}' is no host with a port; an endpoint is like ${EXAMPLE}`);
  }
  return url;
}

function schemeOf(url: string): string {
  return url.slice(0, url.indexOf(":"));
}

/**
 * The live endpoints of a list (`GET /v1/endpoints`) that a client may use beside those that it was given: of the same scheme, and
 * none over plain HTTP for a client with a token, because anybody on the way could have written the list.
 */
export function usable(list: Json, configured: readonly string[], withToken: boolean): string[] {
  const scheme = schemeOf(configured[0] as string);
  const entries = list["endpoints"];
  if ((scheme === "http" && withToken) || !Array.isArray(entries)) return [];
  const found: string[] = [];
  for (const entry of entries as { url?: unknown; live?: unknown }[]) {
    if (typeof entry?.url !== "string" || entry.live !== true) continue;
    try {
      const url = parseOne(entry.url);
      if (schemeOf(url) === scheme && !configured.includes(url) && !found.includes(url)) found.push(url);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
    }
  }
  return found.slice(0, ENDPOINTS_MAX - configured.length);
}

/** Whether nobody in a list is live: it is of a replica whose core is silent, and tells nothing. */
export function seesNobody(list: Json): boolean {
  const entries = list["endpoints"];
  return Array.isArray(entries) && entries.length > 0 && !entries.some((one: { live?: unknown } | null) => one?.live === true);
}

/** Whether to ask the next endpoint at once: there was no answer, none of a notary's, or the replica is passive. */
export function turns(status: number, body: string): boolean {
  if (status < 500) return status === 0;
  const problem = problemIn(body);
  return problem === null || problem.code === "NOT_ACTIVE";
}

/** One stays in use until a call to it fails. Shared by all calls of a client. */
export class Endpoints {
  readonly configured: readonly string[];
  #listed: readonly string[] = [];
  #current: string;

  /** Throws ConfigError. */
  constructor(given: Given) {
    this.configured = parseEndpoints(given);
    this.#current = this.configured[0] as string;
  }

  get current(): string {
    return this.#current;
  }

  /** Whether there is another one to turn to. One alone is taken as a balanced endpoint, and used alone. */
  get several(): boolean {
    return this.configured.length > 1;
  }

  /** Those that were given, and those that a replica listed. */
  get known(): readonly string[] {
    return [...this.configured, ...this.#listed];
  }

  /** All that are known, the one in use first. */
  get fromCurrent(): readonly string[] {
    const place = this.known.indexOf(this.#current);
    return [...this.known.slice(place), ...this.known.slice(0, place)];
  }

  /**
   * Turn away from one that failed; whether the next one is new in this round, so that it may be asked without a pause. Another
   * call may have turned already. `asked`: those of this round, kept by the caller; empty again once the round is over.
   */
  nextOfRound(failed: string, asked: Set<string>): boolean {
    asked.add(failed);
    if (failed === this.#current) {
      this.#current = this.known[(this.known.indexOf(failed) + 1) % this.known.length] as string;
    }
    if (!asked.has(this.#current)) return true;
    asked.clear();
    return false;
  }

  /** Use the endpoint of the replica that is active. */
  prefer(endpoint: string): void {
    if (this.known.includes(endpoint)) this.#current = endpoint;
  }

  /** Replace what was listed before. What was given stays for ever. */
  takeList(listed: readonly string[]): void {
    this.#listed = listed;
    if (!this.known.includes(this.#current)) this.#current = this.configured[0] as string;
  }
}
