/** Calls over HTTP: one exchange with its token, its limits, and the estimates that may come before its answer. */

import * as http from "node:http";
import * as https from "node:https";

import { type Access, bearerHeader, Bearer, isOfToken, tlsForAll, type TlsOptions } from "./access.js";
import type { Problem } from "./answers.js";
import { Endpoints, type Given, turns } from "./endpoints.js";
import { NotActive, RequestRejected } from "./errors.js";
import { limitOf, linesOf, readBody, toldBy } from "./exchange.js";
import { Lookout, Waiting } from "./lookout.js";
import { integer, type Json, parseJson, problemIn } from "./reading.js";
import { clockS, type RetryPolicy, sleepS, timerMs } from "./retry.js";

/** Is told, while a call waits, within how many seconds the notary expects to have its answer. */
export type OnWait = (estimateS: number) => void;

export interface Exchange {
  /** 0: there was no answer, and the body says why. */
  readonly status: number;
  readonly body: string;
}

const LINES = "application/x-ndjson";

export class Connection {
  readonly bearer: Bearer;
  readonly tls: TlsOptions;
  readonly endpoints: Endpoints;
  readonly #lookout: Lookout | null;
  readonly #agent: http.Agent | https.Agent;
  readonly #isTls: boolean;

  /** Throws ConfigError when an endpoint, or what `access` names, cannot be used. */
  constructor(
    endpoint: Given,
    readonly policy: RetryPolicy,
    readonly access: Access,
    connectionsMax: number,
  ) {
    this.endpoints = new Endpoints(endpoint);
    this.tls = tlsForAll(this.endpoints.configured, access);
    this.bearer = new Bearer(access.token);
    this.#isTls = this.endpoints.current.startsWith("https:");
    const settings = { keepAlive: true, maxSockets: connectionsMax };
    this.#agent = this.#isTls ? new https.Agent({ ...settings, ...this.tls }) : new http.Agent(settings);
    this.#lookout = this.endpoints.several ? new Lookout(this.endpoints, this.bearer, this.tls) : null;
  }

  close(): void {
    this.#lookout?.close();
    this.#agent.destroy();
  }

  /**
   * Status and body of an answer. Asks the endpoint in use, and turns to the next one where `turns` says so, each endpoint once at
   * most. What is sent is the same, its ids too, so an endpoint that is asked second answers as the first one did or would have.
   */
  async call(method: string, path: string, body?: string, onWait: OnWait = () => undefined): Promise<Exchange> {
    const asked = new Set<string>();
    let unknown: Exchange | null = null; // something may have been done, and nobody said what
    for (;;) {
      const endpoint = this.endpoints.current;
      const answer = await this.#call(endpoint, method, path, body, onWait);
      if (!turns(answer.status, answer.body)) {
        // a token refused now does not settle an earlier attempt, whose outcome stays unknown
        return unknown !== null && answer.status === 401 ? unknown : answer;
      }
      if (problemIn(answer.body) === null) unknown = answer;
      if (!this.endpoints.nextOfRound(endpoint, asked)) return unknown ?? answer;
    }
  }

  /** One endpoint's answer. A token that is refused is asked for anew, once. */
  async #call(endpoint: string, method: string, path: string, body: string | undefined, onWait: OnWait): Promise<Exchange> {
    const token = await this.bearer.token();
    const answer = await this.#exchange(endpoint, method, path, body, token, onWait);
    const problem = answer.status === 401 && token !== undefined ? problemIn(answer.body) : null;
    if (problem !== null && isOfToken(problem) && (await this.bearer.renew(token))) {
      return this.#exchange(endpoint, method, path, body, await this.bearer.token(), onWait);
    }
    return answer;
  }

  /** The document at a path, asked for until a replica serves it. Throws RequestRejected, NotActive, AnswerUnreadable. */
  async fetch(path: string): Promise<Json> {
    const deadlineS = clockS() + this.policy.deadlineS;
    for (let attempt = 0; ; attempt++) {
      const { status, body } = await this.call("GET", path);
      if (status === 200) return parseJson(body);
      const problem = problemIn(body);
      const delayS = this.policy.delayS(attempt, problem?.retryAfterS ?? 0, Math.random());
      if (problem?.retry === "no" || clockS() + delayS > deadlineS) throw whyNot(body, problem);
      await sleepS(delayS);
    }
  }

  /**
   * A request whose answer is read as it comes. Rejects when nobody answers within `attemptMaxS`. It, or the answer, ends with an
   * error when another replica is active while `waiting` waits.
   */
  open(
    method: string,
    path: string,
    body: string | undefined,
    headers: http.OutgoingHttpHeaders,
    waiting: Waiting,
  ): Promise<http.IncomingMessage> {
    return new Promise((resolve, reject) => {
      const make = this.#isTls ? https.request : http.request;
      const request = make(waiting.endpoint + path, {
        method,
        agent: this.#agent,
        headers: body === undefined ? headers : { ...headers, "Content-Length": Buffer.byteLength(body) },
      });
      const limitS = this.policy.attemptMaxS;
      const timer = setTimeout(() => request.destroy(new Error("no answer in time")), timerMs(limitS));
      waiting.giveUp = (why) => request.destroy(why);
      this.#lookout?.add(waiting);
      request.once("close", () => this.#lookout?.remove(waiting));
      request.once("response", (response) => {
        clearTimeout(timer);
        waiting.giveUp = (why) => response.destroy(why);
        resolve(response);
      });
      request.on("error", (error) => {
        clearTimeout(timer);
        reject(error);
      });
      request.end(body);
    });
  }

  async #exchange(
    endpoint: string,
    method: string,
    path: string,
    body: string | undefined,
    token: string | undefined,
    onWait: OnWait,
  ): Promise<Exchange> {
    const headers = {
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      Accept: `application/json, ${LINES}`,
      ...bearerHeader(token),
    };
    try {
      const response = await this.open(method, path, body, headers, new Waiting(endpoint));
      if (!(response.headers["content-type"] ?? "").startsWith(LINES)) {
        const limit = limitOf(response, this.policy.attemptMaxS);
        try {
          return { status: response.statusCode ?? 0, body: await readBody(response) };
        } finally {
          clearTimeout(limit);
        }
      }
      return await this.#lastLine(response, onWait);
    } catch (error) {
      return { status: 0, body: toldBy(error) };
    }
  }

  /** The answer behind the estimates, each of which moves the limit. */
  async #lastLine(response: http.IncomingMessage, onWait: OnWait): Promise<Exchange> {
    const lastS = clockS() + this.policy.estimateMaxS;
    let limit = limitOf(response, this.policy.attemptMaxS);
    try {
      for await (const line of linesOf(response)) {
        const head = parseJson(line);
        if (head["kind"] !== "wait") {
          return { status: head["status"] === undefined ? 200 : integer(head, "status"), body: line };
        }
        const told = head["estimate_s"];
        const estimateS = this.policy.believedS(typeof told === "number" ? told : 0);
        onWait(estimateS);
        clearTimeout(limit);
        limit = limitOf(response, Math.min(Math.max(estimateS, this.policy.attemptMaxS), lastS - clockS()));
      }
    } finally {
      clearTimeout(limit);
      response.destroy();
    }
    return { status: 0, body: "no answer behind the estimates" };
  }
}

/** The error of an answer that is not the document that was asked for. */
export function whyNot(body: string, problem: Problem | null): NotActive | RequestRejected {
  if (problem !== null && (problem.retry === "no" || problem.code === "OFFSET_AFTER_END")) return new RequestRejected(problem);
  return new NotActive(`no replica answers: ${body.slice(0, 200)}`);
}
