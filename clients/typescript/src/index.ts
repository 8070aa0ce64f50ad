/** Client of the replicated notary's ledger API: signed submissions, retries with the same ids, receipts that verify offline. */

export type { Access, Token } from "./access.js";
export type { Accepted, AcceptedEarly, Conflict, Notarised, NotNow, Place, Problem, Receipt, Refused, Result } from "./answers.js";
export { Bookmark } from "./bookmark.js";
export { changeId, contentDigest, encodeRequest, type Request } from "./canonical.js";
export { type ClientOptions, type Commit, type LedgerEnd, type LogTransaction, NotaryClient, type NotaryDescription, type StateStatus, type SubmitOptions, type TransactionStatus } from "./client.js";
export { type Code, isKnown, type Retry, RETRY_BY_CODE } from "./codes.js";
export type { OnWait } from "./connection.js";
export type { Given } from "./endpoints.js";
export * from "./errors.js";
export { succeeded, type Completion, type FeedOptions, type Update } from "./feeds.js";
export { certifies, verifyReceipt } from "./receipts.js";
export { RetryPolicy, type RetrySettings } from "./retry.js";
export { type Deduplication, Party, type Submission, type Transaction } from "./signing.js";
export { type StreamOptions, type StreamResult, SubmissionStream } from "./stream.js";
export { microseconds, type TimeWindow } from "./window.js";
