/** Typed errors. Each has a stable `code` of the catalogue; those about an answer keep what was answered. */

import type { Notarised, NotNow, Problem, Refused, Result } from "./answers.js";

export class NotaryError extends Error {
  /** `code` may be one that only a newer notary knows. */
  constructor(
    readonly code: string,
    readonly detail: string,
  ) {
    super(`${code}: ${detail}`);
    this.name = new.target.name;
  }
}

/** The caller must change the request; nothing was sent. */
export class BadRequest extends NotaryError {
  constructor(detail: string, code = "MALFORMED_REQUEST") {
    super(code, detail);
  }
}

/** A setting of the client cannot be used; nothing was sent. */
export class ConfigError extends NotaryError {
  constructor(detail: string, code = "CONFIG_INVALID") {
    super(code, detail);
  }
}

/** The application's own source gave no token; nothing was sent. */
export class TokenUnavailable extends NotaryError {
  constructor(detail: string) {
    super("TOKEN_MISSING", detail);
  }
}

/** What came back is no answer of this API. Nothing is known of what was asked. */
export class AnswerUnreadable extends NotaryError {
  constructor(detail: string) {
    super("ANSWER_UNREADABLE", detail);
  }
}

/** No replica answered a question until the policy's deadline. */
export class NotActive extends NotaryError {
  constructor(detail: string) {
    super("NOT_ACTIVE", detail);
  }
}

/** The notary decided against this request. `refused.final` says whether it may be notarised later. */
export class NotarisationRefused extends NotaryError {
  constructor(readonly refused: Refused) {
    super(refused.code, refused.detail);
  }
}

/** The request cannot be taken as it is; nothing was logged. */
export class RequestRejected extends NotaryError {
  constructor(readonly problem: Problem) {
    super(problem.code, problem.detail);
  }
}

/** No final answer in the policy's time. Keep the submission, and send it again, unchanged. */
export class OutcomeUnknown extends NotaryError {
  constructor(readonly answer: NotNow) {
    super(answer.code, answer.detail);
  }
}

/** A success that the notary's key does not vouch for: do not act on it, and tell the operator. */
export class ReceiptInvalid extends NotaryError {
  constructor(readonly answer: Notarised) {
    super("RECEIPT_INVALID", `the receipt of ${answer.txId} does not verify for what was submitted`);
  }
}

/** A stream of completions that cannot go on: pruned, not to be seen, or of another ledger. */
export class StreamEnded extends NotaryError {
  constructor(
    readonly problem: Problem,
    readonly after: number,
  ) {
    super(problem.code, `${problem.detail} (read up to offset ${after})`);
  }
}

/** The success, or the error that fits. Throws NotarisationRefused, RequestRejected, OutcomeUnknown. */
export function successOf(result: Result): Notarised {
  switch (result.kind) {
    case "notarised":
      return result;
    case "refused":
      throw new NotarisationRefused(result);
    case "not_now":
      throw new OutcomeUnknown(result);
    case "problem":
      throw new RequestRejected(result);
  }
}
