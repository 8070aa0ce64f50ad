/** Calls over HTTP: one exchange with its token, its limits, and the estimates that may come before its answer. */

import * as http from "node:http";
import * as https from "node:https";

import { type Access, bearerHeader, Bearer, isOfToken, tlsForAll, type TlsOptions } from "./access.js";
import { integer, type Json, parseJson, type Problem, problemIn } from "./answers.js";
import { Endpoints, type Given, turns, usable } from "./endpoints.js";
import { AnswerUnreadable, NotActive, RequestRejected } from "./errors.js";
import { clockS, RetryPolicy, sleepS, timerMs } from "./retry.js";

/** Is told, while a call waits, within how many seconds the notary expects to have its answer. */
export type OnWait = (estimateS: number) => void;

export interface Exchange {
  /** 0: there was no answer, and the body says why. */
  readonly status: number;
  readonly body: string;
}

const LINES = "application/x-ndjson";
const ANSWER_MAX_BYTES = 256 * 2 ** 20;
const LINE_MAX_BYTES = 16 * 2 ** 20;
const NEWLINE = 10;

const REFRESH_EVERY_S = 30;
const REFRESH_AGAIN_S = 5; // after one that failed
const LIST_MAX_CHARACTERS = 65_536;

export class Connection {
  readonly bearer: Bearer;
  readonly tls: TlsOptions;
  readonly endpoints: Endpoints;
  #refreshAtS = -Infinity;
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
  }

  close(): void {
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
        this.#refreshSoon();
        // a token refused now does not settle an earlier attempt, whose outcome stays unknown
        return unknown !== null && answer.status === 401 ? unknown : answer;
      }
      if (problemIn(answer.body) === null) unknown = answer;
      if (!this.endpoints.nextOfRound(endpoint, asked)) return answer;
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

  /** Ask for the list of endpoints, beside the call that was answered, when it is due. */
  #refreshSoon(): void {
    if (!this.endpoints.several || clockS() < this.#refreshAtS) return;
    this.#refreshAtS = clockS() + REFRESH_AGAIN_S;
    void this.#refresh().catch(() => undefined); // the list before stays in force
  }

  async #refresh(): Promise<void> {
    const token = await this.bearer.token();
    const { status, body } = await this.#exchange(this.endpoints.current, "GET", "/v1/endpoints", undefined, token, () => undefined);
    if (status !== 200 || body.length > LIST_MAX_CHARACTERS) return;
    this.endpoints.takeList(usable(parseJson(body), this.endpoints.configured, token !== undefined));
    this.#refreshAtS = clockS() + REFRESH_EVERY_S;
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

  /** A request whose answer is read as it comes. Rejects when nobody answers within `attemptMaxS`. */
  open(method: string, url: string, body: string | undefined, headers: http.OutgoingHttpHeaders): Promise<http.IncomingMessage> {
    return new Promise((resolve, reject) => {
      const make = this.#isTls ? https.request : http.request;
      const request = make(url, {
        method,
        agent: this.#agent,
        headers: body === undefined ? headers : { ...headers, "Content-Length": Buffer.byteLength(body) },
      });
      const limitS = this.policy.attemptMaxS;
      const timer = setTimeout(() => request.destroy(new Error("no answer in time")), timerMs(limitS));
      request.once("response", (response) => {
        clearTimeout(timer);
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
      const response = await this.open(method, endpoint + path, body, headers);
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

/** Whole lines as they come; what the last one lacks is lost with the connection. Throws AnswerUnreadable. */
export async function* linesOf(response: http.IncomingMessage): AsyncGenerator<string> {
  let begun: Buffer[] = [];
  let size = 0;
  for await (const found of response) {
    const chunk = found as Buffer;
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, from)) {
      yield Buffer.concat([...begun, chunk.subarray(from, end)]).toString("utf8");
      [begun, size, from] = [[], 0, end + 1];
    }
    if (from < chunk.length) begun.push(chunk.subarray(from));
    size += chunk.length - from;
    if (size > LINE_MAX_BYTES) throw new AnswerUnreadable(`a line has at most ${LINE_MAX_BYTES} bytes`);
  }
}

/** The whole body. Throws AnswerUnreadable when it is too large to be an answer. */
export async function readBody(response: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of response) {
    size += (chunk as Buffer).length;
    if (size > ANSWER_MAX_BYTES) throw new AnswerUnreadable(`an answer has at most ${ANSWER_MAX_BYTES} bytes`);
    chunks.push(chunk as Buffer);
  }
  return Buffer.concat(chunks).toString("utf8");
}

/** What to tell of a failed exchange. */
export function toldBy(error: unknown): string {
  return (error instanceof Error ? error.message || error.name : String(error)).slice(0, 200);
}

function limitOf(response: http.IncomingMessage, limitS: number): NodeJS.Timeout {
  return setTimeout(() => response.destroy(new Error("no answer in time")), timerMs(Math.max(limitS, 0)));
}
