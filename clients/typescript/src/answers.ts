/** What the notary answers. */

import type { Retry } from "./codes.js";
import type { TimeWindow } from "./window.js";

/** Where and when a transaction was first notarised; `judged_us` is microseconds since 1970, UTC. */
export interface Place {
  readonly log_id: string;
  readonly log_offset: number;
  readonly epoch: number;
  readonly judged_us: number;
}

/** The JSON form of a receipt, every byte string in hexadecimal. It proves its place as well, if it has one. */
export interface Receipt {
  readonly tx_id: string;
  readonly content_digest: string;
  readonly leaf_index: number;
  readonly tree_size: number;
  readonly path: readonly string[];
  readonly notary_key: string;
  readonly signature: string;
  readonly version: number;
  readonly place?: Place;
}

/** Final: this content is notarised under this id for ever, at `logOffset`. Ids and digests are lower-case hexadecimal. */
export interface Notarised {
  readonly kind: "notarised";
  readonly txId: string;
  readonly contentDigest: string;
  readonly logOffset: number;
  /** This submission's own record; null for a look-up, or when an earlier answer was given again. */
  readonly recordOffset: number | null;
  readonly duplicate: boolean;
  readonly receipt: Receipt;
  /** Where its completion is; null: not known. */
  readonly ledgerOffset: number | null;
}

export interface Conflict {
  readonly state: string;
  readonly consumedByHash: string;
  readonly usage: "input" | "reference";
}

/** The verdict against this submission. `final`: the same content will never be notarised under this id. */
export interface Refused {
  readonly kind: "refused";
  readonly code: string;
  readonly detail: string;
  readonly txId: string;
  readonly final: boolean;
  readonly recordOffset: number | null;
  readonly ledgerOffset: number | null;
  readonly conflicts: readonly Conflict[];
  readonly judgedUs?: bigint;
  readonly window?: TimeWindow;
  /** Of COMMAND_ID_REUSED: the record that the command id belongs to. */
  readonly acceptedOffset: number | null;
  readonly bound?: { readonly longestS: number; readonly earliestOffset: number };
}

/** Not final: nothing is decided, or the outcome is not known. Send the same again after `retryAfterS`. */
export interface NotNow {
  readonly kind: "not_now";
  readonly code: string;
  readonly detail: string;
  readonly retryAfterS: number;
}

/**
 * An asynchronous submission is recorded, and its record will have one completion. Without one in `estimateS`, send it again.
 * Where several replicas logged it at once there is one for each, and at most one of them is NOTARISED.
 */
export interface Accepted {
  readonly kind: "accepted";
  readonly submissionId: string;
  readonly estimateS: number;
  /** Its record in the log, and its completion's; null: not in the log yet. */
  readonly logOffset: number | null;
}

/**
 * The log's leader has the record at `transactionId`, `view.seqno`; it is not committed, and may still be lost.
 *
 * This is no answer. Without a completion in `estimateS`, send the same submission again.
 */
export interface AcceptedEarly {
  readonly kind: "accepted_early";
  readonly submissionId: string;
  readonly estimateS: number;
  readonly transactionId: string;
}

/** The request cannot be taken as it is: change what the detail names. Nothing was logged. */
export interface Problem {
  readonly kind: "problem";
  readonly code: string;
  readonly status: number;
  readonly title: string;
  readonly detail: string;
  readonly remedy: string;
  readonly retry: Retry;
  readonly requestId: string;
  readonly retryAfterS: number;
  /** The bound of pruning, where the problem names it; else null. */
  readonly prunedTo: number | null;
}

export type Result = Notarised | Refused | NotNow | Problem;
