/** How answers are read, from JSON and from the frames of a stream. */

import type { Accepted, AcceptedEarly, Conflict, Notarised, NotNow, Place, Problem, Refused, Result } from "./answers.js";
import { formatStateRef, parseTime } from "./canonical.js";
import { isKnown, RETRY_BY_CODE } from "./codes.js";
import { AnswerUnreadable, NotaryError } from "./errors.js";
import type { TimeWindow } from "./window.js";

export type Json = Record<string, unknown>;

const QUOTE_MAX = 200;

/** No answer; whether the request was dealt with is not known. */
export function unknownOutcome(detail: string): NotNow {
  return { kind: "not_now", code: "OUTCOME_UNKNOWN", detail: detail.slice(0, QUOTE_MAX), retryAfterS: 0 };
}

/** The result in an answer's body; whatever does not come from the notary leaves the outcome unknown. */
export function readAnswer(status: number, body: string): Result | Accepted {
  try {
    const document = parseJson(body);
    if (status === 200) return notarised(document);
    if (status === 202) return accepted(document);
    return resultOf(document);
  } catch (error) {
    if (!(error instanceof NotaryError)) throw error;
    return unknownOutcome(`no answer: ${status} ${body}`);
  }
}

/** As `readAnswer`, of a call that asked for early acceptance. */
export function readEarly(status: number, body: string): Result | Accepted | AcceptedEarly {
  try {
    const document = parseJson(body);
    if (status === 202 && document["code"] === "ACCEPTED_EARLY") return acceptedEarly(document);
  } catch (error) {
    if (!(error instanceof NotaryError)) throw error;
    return unknownOutcome(`no answer: ${status} ${body}`);
  }
  return readAnswer(status, body);
}

/** As `readAnswer`, of a call that waits for the outcome. */
export function readDecision(status: number, body: string): Result {
  return decisionOf(readAnswer(status, body));
}

/** What an answer says of the outcome. */
export function decisionOf(answer: Result | Accepted): Result {
  if (answer.kind !== "accepted") return answer;
  const detail = "recorded; the outcome is a completion";
  return { kind: "not_now", code: "ACCEPTED", detail, retryAfterS: answer.estimateS };
}

/** The problem that a body is; null when it is none. */
export function problemIn(body: string): Problem | null {
  try {
    return problemOf(parseJson(body));
  } catch {
    return null;
  }
}

/** The problem document of RFC 9457. Throws AnswerUnreadable. */
export function problemOf(document: Json): Problem {
  const retry = text(document, "retry");
  if (retry !== "no" && retry !== "same") throw new AnswerUnreadable(`retry '${retry}'`);
  return {
    kind: "problem",
    code: text(document, "code"),
    status: integer(document, "status"),
    title: text(document, "title"),
    detail: text(document, "detail"),
    remedy: text(document, "remedy"),
    retry,
    requestId: typeof document["request_id"] === "string" ? document["request_id"] : "",
    retryAfterS: number(document["retry_after_s"]),
    prunedTo: integerOrNull(document, "pruned_to"),
  };
}

/** The problem of a code, for what comes without a document. */
export function problem(code: string, detail: string, status = 400): Problem {
  const retry = isKnown(code) ? RETRY_BY_CODE[code] : "no";
  return { kind: "problem", code, status, title: code, detail, remedy: "", retry, requestId: "", retryAfterS: 0, prunedTo: null };
}

/** An answer in a frame of a stream, byte strings as bytes. Throws AnswerUnreadable. */
export function answerInFrame(raw: unknown): Result | Accepted {
  const map = plain(raw) as Json;
  if (typeof map !== "object" || map === null) throw new AnswerUnreadable("an answer is a map");
  switch (map["type"]) {
    case "notarised":
      return notarised(map);
    case "accepted":
      return accepted(map);
    case "rejected":
      return problem(text(map, "code"), text(map, "detail"));
    case "not_now":
      return notNow(text(map, "code"), text(map, "detail"), number(map["retry_after_s"]));
    case "refused":
      return refusedInFrame(map);
    default:
      throw new AnswerUnreadable(`an answer of type '${String(map["type"])}'`);
  }
}

/** A JSON object. Throws AnswerUnreadable. */
export function parseJson(body: string): Json {
  let found: unknown;
  try {
    found = JSON.parse(body);
  } catch {
    throw new AnswerUnreadable(`no JSON: ${body.slice(0, QUOTE_MAX)}`);
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new AnswerUnreadable("no JSON object");
  return found as Json;
}

/** A text of a document. Throws AnswerUnreadable. */
export function text(document: Json, name: string): string {
  const found = document[name];
  if (typeof found !== "string") throw new AnswerUnreadable(`${name} is no text`);
  return found;
}

/** An integer of a document. Throws AnswerUnreadable. */
export function integer(document: Json, name: string): number {
  const found = document[name];
  if (typeof found !== "number" || !Number.isSafeInteger(found)) throw new AnswerUnreadable(`${name} is no integer`);
  return found;
}

/** As `integer`, or null. */
export function integerOrNull(document: Json, name: string): number | null {
  return document[name] === null || document[name] === undefined ? null : integer(document, name);
}

function resultOf(document: Json): Result {
  const found = problemOf(document);
  if (found.retry === "same") return notNow(found.code, found.detail, found.retryAfterS);
  if (!isKnown(found.code) || typeof document["tx_id"] !== "string" || document["tx_id"] === "") return found;
  const judgedAt = document["judged_at"];
  return refused(found.code, found.detail, document, {
    conflicts: array(document["conflicts"] ?? []).map((one) => conflict(one as Json)),
    judgedUs: typeof judgedAt === "string" && judgedAt !== "" ? parseTime(judgedAt) : undefined,
    window: windowOf(document["time_window"] as Json | undefined, (end) => parseTime(String(end)), "from", "until"),
    longestS: document["deduplication_max_s"],
    earliestOffset: document["pruned_to"],
  });
}

function refusedInFrame(map: Json): Result {
  const code = text(map, "code");
  if (!isKnown(code)) return problem(code, code);
  const bound = map["bound"] as Json | null | undefined;
  return refused(code, code, map, {
    conflicts: array(map["conflicts"] ?? []).map((one) => {
      const [state, consumedByHash, usage] = array(one);
      return conflict({ state: formatStateRef(Buffer.from(String(state), "hex")), consumed_by_hash: consumedByHash, usage });
    }),
    judgedUs: typeof map["judged_us"] === "number" ? BigInt(map["judged_us"]) : undefined,
    window: windowOf(map["window"] as Json | undefined, (end) => BigInt(end as number | bigint), "from_us", "until_us"),
    longestS: bound?.["longest_s"],
    earliestOffset: bound?.["earliest_offset"],
  });
}

interface Parts {
  conflicts: Conflict[];
  judgedUs: bigint | undefined;
  window: TimeWindow | undefined;
  longestS: unknown;
  earliestOffset: unknown;
}

function refused(code: string, detail: string, document: Json, parts: Parts): Refused {
  const { conflicts, judgedUs, window, longestS, earliestOffset } = parts;
  const tooLate = judgedUs !== undefined && window?.untilUs !== undefined && judgedUs >= window.untilUs;
  return {
    kind: "refused",
    code,
    detail,
    txId: text(document, "tx_id").toLowerCase(),
    final: code === "TIME_WINDOW_CLOSED" ? tooLate : code === "STATE_CONFLICT" || code === "TX_ID_REUSED",
    recordOffset: integerOrNull(document, "record_offset"),
    ledgerOffset: integerOrNull(document, "ledger_offset"),
    acceptedOffset: integerOrNull(document, "accepted_offset"),
    conflicts,
    ...(judgedUs === undefined ? {} : { judgedUs }),
    ...(window === undefined ? {} : { window }),
    ...(typeof longestS === "number" && typeof earliestOffset === "number" ? { bound: { longestS, earliestOffset } } : {}),
  };
}

function notarised(document: Json): Notarised {
  const receipt = document["receipt"] as Json | null | undefined;
  if (typeof receipt !== "object" || receipt === null) throw new AnswerUnreadable("a success has a receipt");
  const path = array(receipt["path"]);
  if (!path.every((node) => typeof node === "string")) throw new AnswerUnreadable("a receipt's path is of texts");
  return {
    kind: "notarised",
    txId: text(document, "tx_id").toLowerCase(),
    contentDigest: text(document, "content_digest").toLowerCase(),
    logOffset: integer(document, "log_offset"),
    recordOffset: integerOrNull(document, "record_offset"),
    duplicate: document["duplicate"] === true,
    receipt: {
      tx_id: text(receipt, "tx_id"),
      content_digest: text(receipt, "content_digest"),
      leaf_index: integer(receipt, "leaf_index"),
      tree_size: integer(receipt, "tree_size"),
      path,
      notary_key: text(receipt, "notary_key"),
      signature: text(receipt, "signature"),
      version: integer(receipt, "version"),
      ...place(receipt["place"] as Json | null | undefined),
    },
    ledgerOffset: integerOrNull(document, "ledger_offset"),
  };
}

function place(document: Json | null | undefined): { place?: Place } {
  if (document === undefined || document === null) return {};
  return {
    place: {
      log_id: text(document, "log_id"),
      log_offset: integer(document, "log_offset"),
      epoch: integer(document, "epoch"),
      judged_us: integer(document, "judged_us"),
    },
  };
}

function accepted(document: Json): Accepted {
  return {
    kind: "accepted",
    submissionId: text(document, "submission_id"),
    estimateS: number(document["estimate_s"]),
    logOffset: integerOrNull(document, "log_offset"),
  };
}

function acceptedEarly(document: Json): AcceptedEarly {
  return {
    kind: "accepted_early",
    submissionId: text(document, "submission_id"),
    estimateS: number(document["estimate_s"]),
    transactionId: text(document, "transaction_id"),
  };
}

/** In the words of this release: what a code of a newer one means for the outcome is not known. */
function notNow(code: string, detail: string, retryAfterS: number): NotNow {
  if (isKnown(code)) return { kind: "not_now", code, detail, retryAfterS };
  return { ...unknownOutcome(`${code}: ${detail}`), retryAfterS };
}

function conflict(document: Json): Conflict {
  const usage = document["usage"];
  if (usage !== "input" && usage !== "reference") throw new AnswerUnreadable("a conflict's usage");
  return { state: text(document, "state"), consumedByHash: text(document, "consumed_by_hash"), usage };
}

function windowOf(
  document: Json | null | undefined,
  read: (end: unknown) => bigint,
  fromName: string,
  untilName: string,
): TimeWindow | undefined {
  if (document === undefined || document === null) return undefined;
  const [from, until] = [document[fromName] ?? undefined, document[untilName] ?? undefined];
  return {
    ...(from === undefined ? {} : { fromUs: read(from) }),
    ...(until === undefined ? {} : { untilUs: read(until) }),
  };
}

function array(found: unknown): unknown[] {
  if (!Array.isArray(found)) throw new AnswerUnreadable("a list is missing");
  return found;
}

function number(found: unknown): number {
  return typeof found === "number" && Number.isFinite(found) ? found : 0;
}

/** Byte strings as hexadecimal; 64-bit integers as numbers where a number holds them. */
function plain(found: unknown): unknown {
  if (found instanceof Uint8Array) return Buffer.from(found).toString("hex");
  if (typeof found === "bigint") return found <= Number.MAX_SAFE_INTEGER ? Number(found) : found;
  if (Array.isArray(found)) return found.map(plain);
  if (typeof found !== "object" || found === null) return found;
  return Object.fromEntries(Object.entries(found).map(([name, value]) => [name, plain(value)]));
}
