/**
 * A notarisation request, its limits, and its canonical bytes: what a party signs, and what the content digest covers.
 * docs/formats.md has the layout; golden vectors check it.
 */

import { fromHex, sha256, uint16, uint32, uint64 } from "./bytes.js";
import { BadRequest } from "./errors.js";
import type { TimeWindow } from "./window.js";

export const STATES_LIMIT = 10_000; // inputs and references together stay below it
export const PARTY_MAX_BYTES = 512;
export const ID_MAX_BYTES = 255;
export const ACT_AS_MAX = 16;
export const TIME_MAX_US = 2n ** 63n - 1n;
export const JSON_TIME_MAX_US = 253_402_300_799_999_999n; // the end of the year 9999

const REQUEST_TAG = Buffer.from("notary/request/3", "ascii");
const CONTENT_TAG = Buffer.from("notary/content/2", "ascii");
const CHANGE_TAG = Buffer.from("notary/command/1", "ascii");
const CONTENT_AT = 64;
const DERIVED = Buffer.from("/derived", "ascii"); // what ids end with that are derived from their content
const STATE = /^([0-9a-fA-F]{64}):([0-9]{1,10})$/;
const INDEX_MAX = 2 ** 32 - 1;
const STATE_REF_BYTES = 36;
const HAS_FROM = 1;
const HAS_UNTIL = 2;
// eslint-disable-next-line no-control-regex
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/;

/** A request; states are `<64 hexadecimal digits>:<index>`, in any order. */
export interface Request {
  /** 32 hexadecimal digits. */
  readonly ledgerId: string;
  readonly txId: string;
  readonly inputs: readonly string[];
  readonly references: readonly string[];
  readonly window?: TimeWindow | undefined;
  readonly party: string;
}

/** What canonical bytes begin with: the request. Throws BadRequest naming the rule that is broken. */
export function encodeRequest(request: Request): Buffer {
  const ledgerId = fromHex("a ledger id", request.ledgerId, 16);
  const txId = fromHex("a transaction id", request.txId, 32);
  if (txId.subarray(-DERIVED.length).equals(DERIVED)) throw new BadRequest("a transaction id that ends in '/derived' is kept for ids that are derived from their content");
  const found = request.inputs.length + request.references.length;
  if (found >= STATES_LIMIT) throw new BadRequest(`${found} states, the limit is ${STATES_LIMIT - 1}`, "TOO_MANY_STATES");
  const inputs = sortedRefs("inputs", request.inputs);
  const references = sortedRefs("references", request.references);
  const consumed = new Set(inputs.map((ref) => ref.toString("hex")));
  if (references.some((ref) => consumed.has(ref.toString("hex")))) {
    throw new BadRequest("a state is both an input and a reference");
  }
  const window = encodeWindow(request.window);
  checkText("party", request.party, PARTY_MAX_BYTES);
  const party = Buffer.from(request.party, "utf8");
  return Buffer.concat([
    REQUEST_TAG,
    ledgerId,
    txId,
    uint16(inputs.length),
    uint16(references.length),
    uint16(0), // nobody owns a state yet
    ...inputs,
    ...references,
    window,
    uint16(party.length),
    party,
  ]);
}

/** The command that a signature covers; `period`: what `encodePeriod` made. */
export interface SignedCommand {
  readonly userId: string;
  readonly commandId: string;
  readonly actAs: readonly string[];
  readonly period: Buffer;
}

/** The canonical bytes: the request, the command and its deduplication period. Throws BadRequest. */
export function encodeRequestWithCommand(request: Request, command: SignedCommand): Buffer {
  const { userId, commandId, actAs, period } = command;
  return Buffer.concat([
    encodeRequest(request),
    ...withLengths([userId, commandId]),
    Buffer.from([actAs.length]),
    ...withLengths(sortedTexts(actAs)),
    period,
    Buffer.alloc(1), // the request is not shown in parts
  ]);
}

/** The deduplication period in canonical bytes: no period, so many seconds (whole microseconds are signed), or an offset. */
export function encodePeriod(durationS?: number, afterOffset?: number): Buffer {
  if (durationS !== undefined) return Buffer.concat([Buffer.from([1]), uint64(BigInt(halfToEven(durationS * 1e6)))]);
  if (afterOffset !== undefined) return Buffer.concat([Buffer.from([2]), uint64(BigInt(afterOffset))]);
  return Buffer.alloc(9);
}

/** The nearest whole number, and the even one of two: what `Math.round` is not. */
function halfToEven(value: number): number {
  const below = Math.floor(value);
  const above = value - below;
  return above > 0.5 || (above === 0.5 && below % 2 === 1) ? below + 1 : below;
}

/** SHA-256 over the canonical inputs, references and window, of canonical bytes. */
export function contentDigest(canonical: Buffer): Buffer {
  const states = canonical.readUInt16BE(CONTENT_AT) + canonical.readUInt16BE(CONTENT_AT + 2);
  return sha256(CONTENT_TAG, canonical.subarray(CONTENT_AT, CONTENT_AT + 6 + STATE_REF_BYTES * states + 17));
}

/** SHA-256 that identifies a command. The submission id is no part of it. */
export function changeId(userId: string, commandId: string, actAs: readonly string[]): Buffer {
  return sha256(CHANGE_TAG, ...withLengths([userId, commandId, ...sortedTexts(actAs)]));
}

function withLengths(texts: readonly string[]): Buffer[] {
  return texts.map((text) => Buffer.from(text, "utf8")).flatMap((raw) => [uint16(raw.length), raw]);
}

/** The 36 bytes of a state's text. Throws BadRequest. */
export function parseStateRef(text: string): Buffer {
  const match = STATE.exec(text);
  const index = Number(match?.[2]);
  if (match?.[1] === undefined || index > INDEX_MAX) {
    throw new BadRequest(`a state is '<64 hexadecimal digits>:<index 0..${INDEX_MAX}>', not '${String(text).slice(0, 90)}'`);
  }
  return Buffer.concat([Buffer.from(match[1], "hex"), uint32(index)]);
}

/** The text of a state's 36 bytes. */
export function formatStateRef(ref: Uint8Array): string {
  const raw = Buffer.from(ref);
  return `${raw.toString("hex", 0, 32)}:${raw.readUInt32BE(32)}`;
}

/** Bound the texts of a command. Throws BadRequest. */
export function checkCommand(userId: string, commandId: string, actAs: readonly string[], submissionId: string): void {
  checkText("user_id", userId, ID_MAX_BYTES);
  checkText("command_id", commandId, ID_MAX_BYTES);
  checkText("submission_id", submissionId, ID_MAX_BYTES);
  if (actAs.length < 1 || actAs.length > ACT_AS_MAX) {
    throw new BadRequest(`act_as names 1 to ${ACT_AS_MAX} parties, not ${actAs.length}`);
  }
  for (const party of actAs) checkText("act_as", party, PARTY_MAX_BYTES);
  if (new Set(actAs).size !== actAs.length) throw new BadRequest("act_as names a party twice");
}

/** Texts in ascending order of their code points, which is that of their UTF-8. JavaScript's own order is of UTF-16. */
export function sortedTexts(texts: readonly string[]): string[] {
  return [...texts].sort((one, other) => Buffer.compare(Buffer.from(one, "utf8"), Buffer.from(other, "utf8")));
}

/** RFC 3339 of a time in microseconds UTC. Throws BadRequest beyond the year 9999. */
export function formatTime(timeUs: bigint): string {
  if (timeUs > JSON_TIME_MAX_US) throw new BadRequest("a time in JSON ends with the year 9999");
  const whole = new Date(Number(timeUs / 1000n)).toISOString().slice(0, -1);
  return `${whole}${String(timeUs % 1000n).padStart(3, "0")}Z`;
}

/** Microseconds UTC of an RFC 3339 time. Throws BadRequest. */
export function parseTime(text: string): bigint {
  const match = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(Z|[+-]\d\d:\d\d)$/.exec(text);
  const whole = match === null ? NaN : Date.parse(`${match[1]}${match[3]}`);
  if (match === null || Number.isNaN(whole)) throw new BadRequest(`'${text.slice(0, 40)}' is no time with a zone`);
  return BigInt(whole) * 1000n + BigInt((match[2] ?? "").padEnd(6, "0"));
}

function sortedRefs(name: string, texts: readonly string[]): Buffer[] {
  const refs = texts.map(parseStateRef).sort(Buffer.compare);
  for (let at = 1; at < refs.length; at++) {
    const [previous, ref] = [refs[at - 1], refs[at]];
    if (previous !== undefined && ref !== undefined && previous.equals(ref)) {
      throw new BadRequest(`${name}: ${formatStateRef(ref)} is named twice`);
    }
  }
  return refs;
}

function encodeWindow(window: TimeWindow | undefined): Buffer {
  if (window === undefined) return Buffer.alloc(17);
  const { fromUs, untilUs } = window;
  if (fromUs === undefined && untilUs === undefined) throw new BadRequest("a time window has at least one end");
  for (const end of [fromUs, untilUs]) {
    if (end !== undefined && (end < 0n || end > TIME_MAX_US)) {
      throw new BadRequest("a time window's ends lie between 1970 and the largest 64-bit count of microseconds");
    }
  }
  if (fromUs !== undefined && untilUs !== undefined && fromUs >= untilUs) {
    throw new BadRequest("a time window starts before it ends");
  }
  const flags = (fromUs === undefined ? 0 : HAS_FROM) | (untilUs === undefined ? 0 : HAS_UNTIL);
  return Buffer.concat([Buffer.from([flags]), uint64(fromUs ?? 0n), uint64(untilUs ?? 0n)]);
}

function checkText(name: string, text: string, maxBytes: number): void {
  if (typeof text !== "string" || hasLoneSurrogate(text)) throw new BadRequest(`${name} is not valid Unicode text`);
  const size = Buffer.byteLength(text, "utf8");
  if (size < 1 || size > maxBytes) throw new BadRequest(`${name} has 1 to ${maxBytes} bytes, not ${size}`);
  if (UNPRINTABLE.test(text)) throw new BadRequest(`${name} has a character that cannot be printed`);
}

function hasLoneSurrogate(text: string): boolean {
  return /[\ud800-\udfff]/u.test(text); // with `u`, a pair is one character and does not match
}
