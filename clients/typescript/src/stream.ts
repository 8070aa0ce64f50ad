/** The client's end of the stream of submissions: many under way at a time, each until its answer is final. */

import { decode, encode } from "@msgpack/msgpack";
import { WebSocket } from "ws";

import { type Access, bearerHeader, Bearer, isOfToken, tlsForAll, type TlsOptions } from "./access.js";
import type { Accepted, NotNow, Problem, Result } from "./answers.js";
import { Endpoints, type Given } from "./endpoints.js";
import { AnswerUnreadable } from "./errors.js";
import { toldBy } from "./exchange.js";
import { Lookout, Waiting } from "./lookout.js";
import { answerInFrame, decisionOf, problem, unknownOutcome } from "./reading.js";
import { clockS, RetryPolicy, type RetrySettings, sleepS, timerMs } from "./retry.js";
import { checkDeduplication, checkSignedPeriod, type Deduplication, type Submission } from "./signing.js";

export const PROTOCOL = "notary.v1";
const STREAM_PATH = "/v1/submissions/stream";
const WELCOME = 0;
const SUBMISSIONS = 1;
const ANSWERS = 2;
const WAITS = 3;
const CLOSING = 4;
const FRAME_SUBMISSIONS = 100;
const FRAME_REQUEST_BYTES = 2 ** 19;
const FRAME_MAX_BYTES = 64 * 2 ** 20;
const SWEEP_S = 0.25;
const PING_S = 20;

export type StreamResult = Result | Accepted;

export interface StreamOptions {
  readonly policy?: RetrySettings;
  readonly access?: Access;
  /** The answer is Accepted, as soon as a submission is recorded; its outcome is a completion. */
  readonly asynchronous?: boolean;
  readonly deduplication?: Deduplication;
  readonly underWayMax?: number;
}

interface Asked {
  readonly submission: Submission;
  readonly settle: (result: StreamResult) => void;
  deadlineS: number;
  attempts: number;
  last: NotNow | null;
}

/**
 * Call `submit` many times at once. What has no final answer is sent again by itself, with the same ids, also when the
 * connection breaks and the next replica is active; after the policy's deadline, or the server's estimate when that is
 * longer, a NotNow is the result.
 */
export class SubmissionStream {
  readonly #endpoints: Endpoints;
  readonly #policy: RetryPolicy;
  readonly #tls: TlsOptions;
  readonly #bearer: Bearer;
  readonly #terms: unknown[];
  readonly #underWayMax: number;
  readonly #asked = new Map<number, Asked>();
  readonly #sent = new Set<number>(); // on this connection, and without an answer
  readonly #lookout: Lookout | null;
  readonly #waiting: (() => void)[] = []; // for room
  readonly #sweeper: NodeJS.Timeout;
  readonly #deduplication: Deduplication | undefined;
  #queue: number[] = [];
  #numbers = 0;
  #socket: WebSocket | null = null;
  #answers: Waiting | null = null; // what waits for them, on this connection
  #useful = false; // this connection: it brought an answer
  #window = 0; // 0 before the welcome
  #frameMax = FRAME_SUBMISSIONS;
  #flushing = false;
  #closed = false;
  #trouble = "no answer in time"; // why there is no connection
  #refusedToken: Problem | null = null;
  #goodAtS = -Infinity;
  /** Connections made so far: all but the first are reconnections. */
  connectionsCount = 0;

  /** Connects by itself. Throws ConfigError, BadRequest for a deduplication period that is none. */
  constructor(endpoint: Given, options: StreamOptions = {}) {
    const access = options.access ?? {};
    this.#policy = new RetryPolicy(options.policy);
    this.#endpoints = new Endpoints(endpoint);
    this.#tls = tlsForAll(this.#endpoints.configured, access);
    this.#bearer = new Bearer(access.token);
    this.#lookout = this.#endpoints.several ? new Lookout(this.#endpoints, this.#bearer, this.#tls) : null;
    if (options.deduplication !== undefined) checkDeduplication(options.deduplication);
    this.#deduplication = options.deduplication;
    const { durationS, afterOffset } = (options.deduplication ?? {}) as { durationS?: number; afterOffset?: number };
    this.#terms = [options.asynchronous ?? false, durationS ?? null, afterOffset ?? 0];
    this.#underWayMax = options.underWayMax ?? 10_000;
    this.#sweeper = setInterval(() => this.#sweep(), SWEEP_S * 1000);
    void this.#keepConnected();
  }

  /** What has no answer yet is given up: its outcome is unknown. */
  close(): void {
    this.#closed = true;
    clearInterval(this.#sweeper);
    this.#lookout?.close();
    this.#socket?.terminate();
    for (const number of [...this.#asked.keys()]) this.#giveUp(number);
  }

  /**
   * The answer to one submission. Waits for room while `underWayMax` are under way. Throws BadRequest for one that was signed for
   * another deduplication period than the stream's, if it has one.
   */
  async submit(submission: Submission): Promise<StreamResult> {
    checkSignedPeriod(submission, this.#deduplication);
    while (this.#asked.size >= this.#underWayMax && !this.#closed) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
    if (this.#closed) return unknownOutcome("the stream is closed");
    const number = this.#numbers++;
    return new Promise((settle) => {
      this.#asked.set(number, { submission, settle, deadlineS: clockS() + this.#policy.deadlineS, attempts: 0, last: null });
      this.#queue.push(number);
      this.#flushSoon();
    });
  }

  /** As `submit`, of a stream that is not asynchronous: the answer is a decision. */
  async decide(submission: Submission): Promise<Result> {
    return decisionOf(await this.submit(submission));
  }

  // ---- the connection ----

  async #keepConnected(): Promise<void> {
    const failed = new Set<string>(); // endpoints, in this round
    for (let failures = 0; !this.#closed; failures++) {
      let token: string | undefined;
      this.#refusedToken = null;
      this.#useful = false;
      const endpoint = this.#endpoints.current;
      try {
        token = await this.#bearer.token();
        if (await this.#converse(endpoint, token)) failures = 0;
      } catch (error) {
        this.#trouble = toldBy(error); // connect again, and send again what has no answer
      }
      this.#window = 0;
      this.#queue = [...[...this.#sent].sort((one, other) => one - other), ...this.#queue];
      this.#sent.clear();
      if (this.#refusedToken !== null) {
        await this.#afterRefusal(this.#refusedToken, token);
      } else {
        if (this.#useful) failed.clear();
        if (this.#endpoints.nextOfRound(endpoint, failed)) continue;
      }
      await sleepS(this.#policy.delayS(failures, 0, Math.random()));
    }
  }

  /** Get another token; without one, what was never sent ends here, and of the rest nothing is known. */
  async #afterRefusal(refused: Problem, token: string | undefined): Promise<void> {
    const wasGood = clockS() - this.#goodAtS < this.#policy.deadlineS;
    if (isOfToken(refused) && ((await this.#bearer.renew(token)) || (wasGood && this.#bearer.canRenew))) return;
    this.#trouble = refused.detail;
    for (const [number, asked] of [...this.#asked]) if (asked.attempts === 0) this.#finish(number, asked, refused);
  }

  /** One connection, from its beginning to its end; true when it was let in. */
  #converse(endpoint: string, token: string | undefined): Promise<boolean> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return resolve(false);
      const limitMs = timerMs(this.#policy.attemptMaxS);
      const socket = new WebSocket(endpoint.replace(/^http/, "ws") + STREAM_PATH, [PROTOCOL], {
        ...this.#tls,
        headers: bearerHeader(token),
        followRedirects: false,
        handshakeTimeout: limitMs,
        maxPayload: FRAME_MAX_BYTES,
      });
      this.#socket = socket;
      let isAlive = true;
      let failure: Error | null = null;
      const fail = (error: unknown): void => {
        failure ??= error instanceof Error ? error : new Error(String(error));
        socket.terminate();
      };
      const waiting = (this.#answers = new Waiting(endpoint));
      waiting.giveUp = fail;
      this.#lookout?.add(waiting);
      const welcomed = setTimeout(() => fail(new Error("no welcome in time")), 2 * limitMs);
      const pinging = setInterval(() => {
        if (!isAlive) return fail(new Error("the server does not answer a ping"));
        isAlive = false;
        if (socket.readyState === WebSocket.OPEN) socket.ping();
      }, PING_S * 1000);
      socket.on("pong", () => (isAlive = true));
      socket.on("unexpected-response", (_, response) => {
        if (response.statusCode === 401) {
          const code = token === undefined ? "TOKEN_MISSING" : "TOKEN_INVALID";
          this.#refusedToken = problem(code, "the API does not accept this client's token", 401);
        }
        fail(new Error(`the stream was refused with status ${response.statusCode}`));
      });
      socket.on("error", fail);
      socket.on("message", (data, isBinary) => {
        try {
          if (!isBinary) throw new AnswerUnreadable("a stream has binary messages only");
          isAlive = true;
          if (this.#window === 0) clearTimeout(welcomed);
          if (!this.#take(frameIn(data as Buffer))) socket.terminate();
          waiting.sinceS = this.#sent.size > 0 ? clockS() : Infinity;
        } catch (error) {
          fail(error);
        }
      });
      socket.on("close", () => {
        clearTimeout(welcomed);
        clearInterval(pinging);
        this.#lookout?.remove(waiting);
        this.#answers = null;
        const wasIn = this.#window > 0;
        if (failure === null || wasIn) resolve(wasIn);
        else reject(failure);
      });
    });
  }

  /** What is submitted in the same turn goes into the same frame. */
  #flushSoon(): void {
    if (this.#flushing) return;
    this.#flushing = true;
    setImmediate(() => {
      this.#flushing = false;
      while (this.#flush());
    });
  }

  /** Send one frame; false when there is nothing to send, or no room in the window. */
  #flush(): boolean {
    const socket = this.#socket;
    if (socket?.readyState !== WebSocket.OPEN || this.#window === 0) return false;
    const batch: [number, unknown][] = [];
    let [taken, size] = [0, 0];
    while (taken < this.#queue.length && batch.length < this.#frameMax && this.#sent.size < this.#window) {
      if (size >= FRAME_REQUEST_BYTES) break;
      const number = this.#queue[taken++] as number;
      const asked = this.#asked.get(number);
      if (asked === undefined) continue; // given up meanwhile
      asked.attempts++;
      this.#sent.add(number);
      batch.push([number, submissionInFrame(asked.submission)]);
      size += asked.submission.canonical.length;
    }
    this.#queue.splice(0, taken);
    if (batch.length > 0) {
      if (this.#answers !== null) this.#answers.sinceS = Math.min(this.#answers.sinceS, clockS());
      socket.send(encode([SUBMISSIONS, batch, ...this.#terms]));
    }
    return batch.length > 0;
  }

  // ---- answers ----

  /** Act on a frame; false when it is better to connect again, perhaps to another replica. */
  #take(frame: unknown[]): boolean {
    const [kind, first, second, third] = frame;
    if (this.#window === 0 && kind !== WELCOME) throw new AnswerUnreadable("the stream does not begin with a welcome");
    this.#goodAtS = clockS();
    switch (kind) {
      case WELCOME:
        if (!isCount(second) || !isCount(third)) throw new AnswerUnreadable("a welcome names its window");
        this.connectionsCount++;
        this.#window = second;
        this.#frameMax = Math.min(FRAME_SUBMISSIONS, third);
        this.#trouble = "no answer in time";
        this.#flushSoon();
        return true;
      case ANSWERS:
        return this.#takeAnswers(first);
      case WAITS:
        this.#takeWaits(first, typeof second === "number" ? second : 0);
        return true;
      case CLOSING:
        if (first === "TOKEN_INVALID") this.#refusedToken = problem("TOKEN_INVALID", String(second), 401);
        return false;
      default:
        return true; // of a later release
    }
  }

  #takeAnswers(batch: unknown): boolean {
    if (!Array.isArray(batch)) throw new AnswerUnreadable("answers are a list");
    let stays = true;
    for (const one of batch as [unknown, unknown][]) {
      const number = Number(one[0]);
      const answer = answerInFrame(one[1]);
      this.#sent.delete(number);
      const asked = this.#asked.get(number);
      if (asked === undefined) continue;
      if (answer.kind === "not_now") {
        stays &&= answer.code !== "NOT_ACTIVE";
        this.#later(number, asked, answer);
      } else {
        this.#useful = true;
        this.#finish(number, asked, answer);
      }
    }
    this.#flushSoon();
    return stays;
  }

  #takeWaits(numbers: unknown, waitS: number): void {
    if (!Array.isArray(numbers)) throw new AnswerUnreadable("a wait names its submissions");
    const deadlineS = clockS() + this.#policy.believedS(waitS);
    for (const number of numbers) {
      const asked = this.#asked.get(Number(number));
      if (asked !== undefined) asked.deadlineS = Math.max(asked.deadlineS, deadlineS);
    }
  }

  #later(number: number, asked: Asked, answer: NotNow): void {
    asked.last = answer;
    if (this.#endpoints.several && answer.code === "NOT_ACTIVE") {
      this.#sent.add(number); // for the next endpoint, with all that has no answer here
      return;
    }
    const delayS = this.#policy.delayS(asked.attempts - 1, answer.retryAfterS, Math.random());
    asked.deadlineS = Math.max(asked.deadlineS, clockS() + this.#policy.believedS(answer.retryAfterS));
    setTimeout(() => {
      this.#queue.push(number);
      this.#flushSoon();
    }, timerMs(delayS)).unref();
  }

  #finish(number: number, asked: Asked, answer: StreamResult): void {
    this.#asked.delete(number);
    this.#waiting.shift()?.();
    asked.settle(answer);
  }

  #giveUp(number: number): void {
    const asked = this.#asked.get(number);
    if (asked === undefined) return;
    this.#finish(number, asked, asked.last ?? unknownOutcome(this.#trouble));
  }

  #sweep(): void {
    const nowS = clockS();
    for (const [number, asked] of [...this.#asked]) if (asked.deadlineS <= nowS) this.#giveUp(number);
  }
}

/** As it is logged: the array of seven of docs/formats.md. */
export function submissionInFrame(submission: Submission): unknown[] {
  const { canonical, publicKey, signature, userId, commandId, actAs, submissionId } = submission;
  return [canonical, publicKey, signature, userId, commandId, [...actAs], submissionId];
}

function frameIn(data: Buffer): unknown[] {
  let found: unknown;
  try {
    found = decode(data, { useBigInt64: true });
  } catch {
    throw new AnswerUnreadable("a message is no MessagePack");
  }
  if (!Array.isArray(found)) throw new AnswerUnreadable("a frame is an array");
  return found;
}

function isCount(found: unknown): found is number {
  return typeof found === "number" && found > 0;
}
