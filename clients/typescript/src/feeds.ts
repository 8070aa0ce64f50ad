/** Reading the streams of completions and updates without a gap and without a duplicate, across fail-overs. */

import { bearerHeader, isOfToken } from "./access.js";
import type { Conflict, Problem } from "./answers.js";
import { Bookmark } from "./bookmark.js";
import { checkOffset } from "./bytes.js";
import type { Connection } from "./connection.js";
import { AnswerUnreadable, NotaryError, StreamEnded } from "./errors.js";
import { linesOf, readBody } from "./exchange.js";
import { QUIET_MAX_S, Waiting } from "./lookout.js";
import { integer, integerOrNull, type Json, parseJson, problem as problemOfCode, problemIn, problemOf, text } from "./reading.js";
import { clockS, sleepS, timerMs } from "./retry.js";

const SILENCE_MAX_S = 30; // above the interval of the server's checkpoints: who says nothing for so long is gone

export interface FeedOptions {
  /** What you have dealt with: a ledger offset, or better a bookmark, which also recognises the ledger; left out: 0, the beginning. */
  readonly after?: number | Bookmark;
  readonly userId?: string;
  readonly parties?: readonly string[];
}

/** What became of one attempt; it never changes at its offset. */
export interface Completion {
  readonly offset: number;
  readonly userId: string;
  readonly commandId: string;
  readonly actAs: readonly string[];
  readonly submissionId: string;
  readonly txId: string;
  readonly contentDigest: string;
  /** NOTARISED, DEDUPLICATED (the command was accepted before), or a code of the error catalogue; see `succeeded`. */
  readonly code: string;
  readonly logOffset: number;
  readonly notarisedOffset: number | null;
  readonly recordedAt: string;
  readonly conflicts: readonly Conflict[];
}

/** Whether the attempt was a success: the transaction is notarised, by it or by an attempt before it. */
export function succeeded(completion: Completion): boolean {
  return completion.code === "NOTARISED" || completion.code === "DEDUPLICATED";
}

/** A transaction at the moment it was notarised. */
export interface Update {
  readonly offset: number;
  readonly txId: string;
  readonly contentDigest: string;
  readonly actAs: readonly string[];
  readonly logOffset: number;
  readonly recordedAt: string;
}

/**
 * What is published after `after`, live once caught up, for ever: it connects again by itself.
 *
 * Whoever keeps the offset of the last one goes on behind it later, on any replica. Whoever keeps its bookmark, and follows
 * with the same filter, also learns that the ledger is another one: StreamEnded with LEDGER_CHANGED. Throws StreamEnded when
 * going on is of no use: pruned, not to be seen, or, told until the policy's deadline, an offset behind the ledger's end;
 * AnswerUnreadable when what is there speaks something else until the deadline.
 */
export function follow<Entry extends Completion | Update>(
  connection: Connection,
  path: string,
  kind: string,
  read: (document: Json) => Entry,
  options: FeedOptions,
): AsyncGenerator<Entry, void> {
  const behind = (after: number): AsyncGenerator<Entry, void> => followBehind(connection, path, kind, read, after, options);
  return options.after instanceof Bookmark ? followBookmark(behind, options.after) : behind(options.after ?? 0);
}

/** Reads the entry at the bookmark again, compares it, and goes on after it. */
async function* followBookmark<Entry extends Completion | Update>(
  behind: (after: number) => AsyncGenerator<Entry, void>,
  kept: Bookmark,
): AsyncGenerator<Entry, void> {
  let isCompared = false;
  try {
    for await (const entry of behind(kept.offset - 1)) {
      if (isCompared) yield entry;
      else if (kept.marks(entry)) isCompared = true;
      else throw ledgerChanged(kept);
    }
  } catch (error) {
    const isOnlyThatPruned = error instanceof StreamEnded && error.code === "OFFSET_PRUNED" && error.problem.prunedTo === kept.offset;
    if (!isOnlyThatPruned) throw error;
  }
  yield* behind(kept.offset);
}

function ledgerChanged(kept: Bookmark): StreamEnded {
  const detail = `what this ledger shows at offset ${kept.offset} is not what was read there`;
  return new StreamEnded(problemOfCode("LEDGER_CHANGED", detail, 0), kept.offset);
}

async function* followBehind<Entry extends { offset: number }>(
  connection: Connection,
  path: string,
  kind: string,
  read: (document: Json) => Entry,
  from: number,
  options: FeedOptions,
): AsyncGenerator<Entry, void> {
  const { bearer, policy } = connection;
  let after = from;
  checkOffset("after", after);
  let failures = 0;
  const failed = new Set<string>(); // endpoints without a stream for us, in this round
  let [goodAtS, unreadableAtS, aheadAtS] = [-Infinity, Infinity, Infinity];
  for (;;) {
    const wasAheadAtS = aheadAtS;
    aheadAtS = Infinity;
    let [toldS, stays] = [0, false];
    const endpoint = connection.endpoints.current;
    const token = await bearer.token();
    try {
      for await (const line of linesBehind(connection, endpoint, `${path}?${query(after, options)}&follow=true`, token)) {
        if ("problem" in line) {
          const { problem } = line;
          const wasGood = clockS() - goodAtS < policy.deadlineS;
          if (problem.retry === "no") {
            const outlives = isOfToken(problem) && ((await bearer.renew(token)) || (wasGood && bearer.canRenew));
            if (!outlives) throw new StreamEnded(problem, after);
          }
          if (problem.code === "OFFSET_AFTER_END") {
            aheadAtS = Math.min(wasAheadAtS, clockS());
            if (clockS() - aheadAtS >= policy.deadlineS) throw new StreamEnded(problem, after);
          }
          [toldS, stays] = [problem.retryAfterS, problem.code !== "NOT_ACTIVE"];
          break;
        }
        const offset = integer(line.document, "offset");
        const isEntry = line.document["kind"] === kind;
        if (!isEntry && line.document["kind"] !== "checkpoint") throw new AnswerUnreadable("a line of another kind");
        if (offset < after + (isEntry ? 1 : 0)) throw new AnswerUnreadable(`offset ${offset} came behind ${after}`);
        failed.clear();
        const entry = isEntry ? read(line.document) : null;
        [after, failures, unreadableAtS, goodAtS] = [offset, 0, Infinity, clockS()];
        if (entry !== null) yield entry;
      }
    } catch (error) {
      if (error instanceof StreamEnded) throw error;
      if (error instanceof NotaryError) {
        unreadableAtS = Math.min(unreadableAtS, clockS());
        if (clockS() - unreadableAtS >= policy.deadlineS) throw error;
      } // whatever else went wrong: connect again, and go on after the last offset
    }
    if (!stays && connection.endpoints.nextOfRound(endpoint, failed)) continue;
    await sleepS(policy.delayS(failures, toldS, Math.random()));
    failures++;
  }
}

/** A completion's document. Throws AnswerUnreadable. */
export function completionOf(document: Json): Completion {
  const conflicts = (document["conflicts"] ?? []) as { state: string; consumed_by_hash: string; usage: Conflict["usage"] }[];
  return {
    offset: integer(document, "offset"),
    userId: text(document, "user_id"),
    commandId: text(document, "command_id"),
    actAs: document["act_as"] as string[],
    submissionId: text(document, "submission_id"),
    txId: text(document, "tx_id"),
    contentDigest: text(document, "content_digest"),
    code: text(document, "code"),
    logOffset: integer(document, "log_offset"),
    notarisedOffset: integerOrNull(document, "notarised_offset"),
    recordedAt: text(document, "recorded_at"),
    conflicts: conflicts.map((one) => ({ state: one.state, consumedByHash: one.consumed_by_hash, usage: one.usage })),
  };
}

/** An update's document. Throws AnswerUnreadable. */
export function updateOf(document: Json): Update {
  return {
    offset: integer(document, "offset"),
    txId: text(document, "tx_id"),
    contentDigest: text(document, "content_digest"),
    actAs: document["act_as"] as string[],
    logOffset: integer(document, "log_offset"),
    recordedAt: text(document, "recorded_at"),
  };
}

type Line = { readonly document: Json } | { readonly problem: Problem };

async function* linesBehind(connection: Connection, endpoint: string, path: string, token: string | undefined): AsyncGenerator<Line> {
  const waiting = new Waiting(endpoint);
  const response = await connection.open("GET", path, undefined, bearerHeader(token), waiting);
  response.setTimeout(timerMs(SILENCE_MAX_S), () => response.destroy(new Error("the stream is silent")));
  try {
    if (response.statusCode !== 200) {
      const problem = problemIn(await readBody(response)); // none: of a proxy that has nobody behind it, for one
      if (problem !== null) yield { problem };
      return;
    }
    waiting.usualS = QUIET_MAX_S;
    for await (const raw of linesOf(response)) {
      waiting.sinceS = clockS();
      const document = parseJson(raw);
      yield document["kind"] === "end" ? { problem: problemOf(document["problem"] as Json) } : { document };
    }
  } finally {
    response.destroy();
  }
}

function query(after: number, options: FeedOptions): string {
  const found = new URLSearchParams({ after: String(after) });
  for (const party of options.parties ?? []) found.append("party", party);
  if (options.userId !== undefined) found.append("user_id", options.userId);
  return found.toString();
}
