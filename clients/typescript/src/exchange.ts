/** Reads answers from the network: lines, whole bodies, and what to tell of those that did not come. */

import type * as http from "node:http";

import { AnswerUnreadable } from "./errors.js";
import { timerMs } from "./retry.js";

const ANSWER_MAX_BYTES = 256 * 2 ** 20;
const LINE_MAX_BYTES = 16 * 2 ** 20;
const NEWLINE = 10;

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
export async function readBody(response: http.IncomingMessage, bytesMax = ANSWER_MAX_BYTES): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of response) {
    size += (chunk as Buffer).length;
    if (size > bytesMax) throw new AnswerUnreadable(`an answer has at most ${bytesMax} bytes`);
    chunks.push(chunk as Buffer);
  }
  return Buffer.concat(chunks).toString("utf8");
}

/** What to tell of a failed exchange. */
export function toldBy(error: unknown): string {
  return (error instanceof Error ? error.message || error.name : String(error)).slice(0, 200);
}

/** Ends an answer that is not whole in time; clear it when it is. */
export function limitOf(response: http.IncomingMessage, limitS: number): NodeJS.Timeout {
  return setTimeout(() => response.destroy(new Error("no answer in time")), timerMs(Math.max(limitS, 0)));
}
