/** The client of the ledger API: submit, look up, follow, and keep on until an answer is final. */

import { type Access, isOfToken } from "./access.js";
import type { Accepted, AcceptedEarly, Notarised, NotNow, Result } from "./answers.js";
import { fromHex } from "./bytes.js";
import { formatStateRef, parseStateRef } from "./canonical.js";
import { Connection, type OnWait, whyNot } from "./connection.js";
import type { Given } from "./endpoints.js";
import { AnswerUnreadable, NotaryError, ReceiptInvalid, RequestRejected, successOf } from "./errors.js";
import { type Completion, completionOf, type FeedOptions, follow, type Update, updateOf } from "./feeds.js";
import { integer, integerOrNull, type Json, parseJson, readAnswer, readDecision, readEarly, text, unknownOutcome } from "./reading.js";
import { certifies, notaryKeyBytes } from "./receipts.js";
import { clockS, RetryPolicy, type RetrySettings, sleepS } from "./retry.js";
import { type Deduplication, type Submission, submissionDocument } from "./signing.js";
import { SubmissionStream } from "./stream.js";

export interface ClientOptions {
  readonly policy?: RetrySettings;
  readonly access?: Access;
  readonly connectionsMax?: number;
}

export interface SubmitOptions {
  /** How far back an acceptance of the same command counts; left out: the longest that the notary allows. */
  readonly deduplication?: Deduplication;
  /** Is told each estimate of how many seconds the answer may take. */
  readonly onWait?: OnWait;
}

export interface LedgerEnd {
  readonly ledgerEnd: number;
  readonly prunedTo: number;
}

/** A transaction that was notarised; what comes from its completion is null while that is not published, or pruned. */
export interface TransactionStatus {
  readonly txId: string;
  readonly contentDigest: string;
  readonly logOffset: number;
  readonly offset: number | null;
  readonly recordedAt: string | null;
  readonly requestedBy: { userId: string; commandId: string; actAs: string[]; submissionId: string } | null;
}

/** What became of an entry of the log, as one of its nodes knows; Committed and Invalid are final. */
export interface LogTransaction {
  readonly transactionId: string;
  readonly status: "Unknown" | "Pending" | "Committed" | "Invalid";
  /** The newest entry that the node knows to be committed. */
  readonly committed: string;
  /** The record's place as all other calls name it; null for the log's own entries, and while the node lacks it. */
  readonly logOffset: number | null;
  /** Its completion's; null while that is not published, and for ever where the record counts for nothing. */
  readonly ledgerOffset: number | null;
}

/** Item i of `viewHistory` is the seqno at which view `viewHistorySince` + i began; both null where not asked for. */
export interface Commit {
  readonly transactionId: string;
  readonly viewHistory: readonly number[] | null;
  readonly viewHistorySince: number | null;
}

export interface StateStatus {
  readonly state: string;
  readonly consumed: boolean;
  readonly consumedByHash: string | null;
  readonly consumedBy: string | null;
  readonly logOffset: number | null;
}

export interface NotaryDescription {
  /** 32 hexadecimal digits that name the ledger for ever; null while the replica has not read its log. */
  readonly ledgerId: string | null;
  readonly notaryKey: string;
  readonly keys: readonly { readonly public_key: string; readonly from?: string; readonly until?: string }[];
  readonly version: string;
  readonly replica: string;
  readonly active: boolean;
  readonly epoch: number;
  readonly batchMax: number;
}

/**
 * Every call keeps on, with the same ids, while the answer is not final or the connection fails, until the policy's
 * deadline: then a NotNow is returned, and the outcome stays unknown until the same submission is sent again.
 */
export class NotaryClient {
  readonly #connection: Connection;
  readonly #options: ClientOptions;

  /**
   * `endpoint`: a connection string (`https://a:8080,b:8080,c:8080/`), or a list of endpoints. Throws ConfigError when one of them, or
   * what `access` names, cannot be used.
   */
  constructor(endpoint: Given, options: ClientOptions = {}) {
    this.#options = options;
    const policy = new RetryPolicy(options.policy);
    this.#connection = new Connection(endpoint, policy, options.access ?? {}, options.connectionsMax ?? 100);
  }

  /** Calls that are under way fail. */
  close(): void {
    this.#connection.close();
  }

  /** Submit one and wait for its answer. */
  async submit(submission: Submission, options: SubmitOptions = {}): Promise<Result> {
    const body = JSON.stringify(submissionDocument(submission, options.deduplication));
    return this.#one(async () => {
      const { status, body: answer } = await this.#connection.call("POST", "/v1/submissions", body, options.onWait);
      return readDecision(status, answer);
    });
  }

  /** Submit several in one call; results in order. Only those without a final answer are sent again. */
  submitBatch(submissions: readonly Submission[], options: SubmitOptions = {}): Promise<Result[]> {
    return this.#batch("/v1/submissions/batch", submissions, options, readDecision);
  }

  /** Submit one without waiting for its outcome: Accepted, as soon as it is recorded. The outcome is a completion. */
  async submitAsync(submission: Submission, options: SubmitOptions = {}): Promise<Result | Accepted> {
    const body = JSON.stringify(submissionDocument(submission, options.deduplication));
    return this.#one(async () => {
      const { status, body: answer } = await this.#connection.call("POST", "/v1/submissions/async", body);
      return readAnswer(status, answer);
    });
  }

  /**
   * Submit one, and get its place in the log as soon as the log's leader has it: AcceptedEarly.
   *
   * That is no answer: the record is not committed, and may still be lost. `logTransaction` shows what became of it. The
   * outcome is a completion; where none comes, send the same submission again. Accepted, where the record was committed
   * first. A problem with EARLY_NOT_OFFERED, where the log is not on log nodes.
   */
  async submitEarly(submission: Submission, options: SubmitOptions = {}): Promise<Result | Accepted | AcceptedEarly> {
    const body = JSON.stringify(submissionDocument(submission, options.deduplication));
    return this.#one(async () => {
      const { status, body: answer } = await this.#connection.call("POST", "/v1/submissions/async?accept=early", body);
      return readEarly(status, answer);
    });
  }

  /** As `submitAsync`, several in one call. */
  submitBatchAsync(submissions: readonly Submission[], options: SubmitOptions = {}): Promise<(Result | Accepted)[]> {
    return this.#batch("/v1/submissions/batch/async", submissions, options, readAnswer);
  }

  /**
   * Submit one, and return its success once the notary's signature is verified for exactly what was submitted.
   *
   * Throws NotarisationRefused, RequestRejected, OutcomeUnknown (keep the submission!), ReceiptInvalid.
   */
  async notarise(submission: Submission, notaryKey: string, options: SubmitOptions = {}): Promise<Notarised> {
    notaryKeyBytes("the notary's key", notaryKey);
    const answer = successOf(await this.submit(submission, options));
    if (!certifies(answer, submission, notaryKey)) throw new ReceiptInvalid(answer);
    return answer;
  }

  /** A stream for many submissions at a time. Close it. */
  stream(options: { asynchronous?: boolean; deduplication?: Deduplication; underWayMax?: number } = {}): SubmissionStream {
    const { policy, access } = this.#options;
    return new SubmissionStream(this.#connection.endpoints.fromCurrent, {
      ...options,
      ...(policy === undefined ? {} : { policy }),
      ...(access === undefined ? {} : { access }),
    });
  }

  /** Submit any number over one stream; results in order. */
  async submitAll(submissions: readonly Submission[], options: { deduplication?: Deduplication } = {}): Promise<Result[]> {
    const stream = this.stream(options);
    try {
      return await Promise.all(submissions.map((submission) => stream.decide(submission)));
    } finally {
      stream.close();
    }
  }

  /** Completions after a ledger offset, without a gap or a duplicate, for ever, across fail-overs; see `follow`. */
  completions(options: FeedOptions = {}): AsyncGenerator<Completion, void> {
    return follow(this.#connection, "/v1/completions", "completion", completionOf, options);
  }

  /** Transactions that were notarised after a ledger offset, each once, for ever; see `follow`. */
  updates(options: Omit<FeedOptions, "userId"> = {}): AsyncGenerator<Update, void> {
    return follow(this.#connection, "/v1/updates", "update", updateOf, options);
  }

  /** Whether a transaction was notarised: Notarised with a fresh receipt, or Refused with TX_NOT_FOUND. */
  async lookUp(txId: string): Promise<Result> {
    const path = `/v1/transactions/${fromHex("a transaction id", txId, 32).toString("hex")}`;
    return this.#one(async () => {
      const { status, body } = await this.#connection.call("GET", path);
      return readDecision(status, body);
    });
  }

  /** Where, when and for whom a transaction was notarised; null when it was not. Throws as `ledgerEnd`. */
  async transaction(txId: string): Promise<TransactionStatus | null> {
    try {
      const path = `/v1/transactions/${fromHex("a transaction id", txId, 32).toString("hex")}/status`;
      return transactionOf(await this.#connection.fetch(path));
    } catch (error) {
      if (error instanceof RequestRejected && error.code === "TX_NOT_FOUND") return null;
      throw error;
    }
  }

  /** Whether a state was consumed, and by which transaction. Throws as `ledgerEnd`. */
  async state(state: string): Promise<StateStatus> {
    const found = await this.#connection.fetch(`/v1/states/${formatStateRef(parseStateRef(state))}`);
    return {
      state: text(found, "state"),
      consumed: found["consumed"] === true,
      consumedByHash: (found["consumed_by_hash"] as string | null | undefined) ?? null,
      consumedBy: (found["consumed_by"] as string | null | undefined) ?? null,
      logOffset: (found["log_offset"] as number | null | undefined) ?? null,
    };
  }

  /** A state's history after a ledger offset, up to now: who consumed it, and who was refused because of it. */
  async *attempts(state: string, after = 0): AsyncGenerator<Completion, void> {
    const path = `/v1/states/${formatStateRef(parseStateRef(state))}/attempts`;
    for (let behind = after; ; ) {
      const page = await this.#connection.fetch(`${path}?after=${behind}`);
      for (const one of page["attempts"] as Json[]) yield completionOf(one);
      const next = integer(page, "next_after");
      if (next <= behind || next >= integer(page, "ledger_end")) return;
      behind = next;
    }
  }

  /** The newest ledger offset. Throws RequestRejected, NotActive after the deadline, AnswerUnreadable. */
  async ledgerEnd(): Promise<LedgerEnd> {
    const found = await this.#connection.fetch("/v1/ledger-end");
    return { ledgerEnd: integer(found, "ledger_end"), prunedTo: integer(found, "pruned_to") };
  }

  /** What became of the log's entry `view.seqno`. Throws as `ledgerEnd`. */
  async logTransaction(transactionId: string): Promise<LogTransaction> {
    const found = await this.#connection.fetch(`/v1/log/${encodeURIComponent(transactionId)}`);
    const status = text(found, "status");
    if (!isLogStatus(status)) throw new AnswerUnreadable(`a status of the log '${status}'`);
    return {
      transactionId: text(found, "transaction_id"),
      status,
      committed: text(found, "committed"),
      logOffset: integerOrNull(found, "log_offset"),
      ledgerOffset: integerOrNull(found, "ledger_offset"),
    };
  }

  /** The newest committed entry of the log, and where its views from this one on began. Throws as `ledgerEnd`. */
  async commit(options: { readonly viewHistorySince?: number } = {}): Promise<Commit> {
    const since = options.viewHistorySince;
    const found = await this.#connection.fetch(`/v1/commit${since === undefined ? "" : `?view_history_since=${since}`}`);
    return {
      transactionId: text(found, "transaction_id"),
      viewHistory: (found["view_history"] as number[] | null | undefined) ?? null,
      viewHistorySince: integerOrNull(found, "view_history_since"),
    };
  }

  /** The notary's key and limits, asked once. Take the key that you trust from the operator, not from here. */
  async describe(): Promise<NotaryDescription> {
    const { status, body } = await this.#connection.call("GET", "/v1/notary");
    if (status !== 200) throw whyNot(body, null);
    const found = parseJson(body);
    return {
      ledgerId: (found["ledger_id"] ?? null) as string | null,
      notaryKey: text(found, "notary_key"),
      keys: (found["keys"] ?? []) as NotaryDescription["keys"],
      version: text(found, "version"),
      replica: text(found, "replica"),
      active: found["active"] === true,
      epoch: integer(found, "epoch"),
      batchMax: integer(found, "batch_max"),
    };
  }

  async #one<Outcome extends Result | Accepted | AcceptedEarly>(ask: () => Promise<Outcome>): Promise<Outcome> {
    const [outcome] = await this.#untilFinal([null], async () => [await ask()]);
    return outcome as Outcome;
  }

  #batch<Outcome extends Result | Accepted | AcceptedEarly>(
    path: string,
    submissions: readonly Submission[],
    options: SubmitOptions,
    read: (status: number, body: string) => Outcome,
  ): Promise<Outcome[]> {
    if (submissions.length === 0) return Promise.resolve([]);
    const documents = submissions.map((submission) => JSON.stringify(submissionDocument(submission, options.deduplication)));
    return this.#untilFinal(documents, async (asked) => {
      const { status, body } = await this.#connection.call("POST", path, `{"submissions":[${asked.join()}]}`, options.onWait);
      const same = (outcome: Outcome | NotNow): Outcome[] => asked.map(() => outcome as Outcome);
      if (status !== 200 && status !== 202) return same(read(status, body));
      try {
        const results = parseJson(body)["results"];
        if (!Array.isArray(results) || results.length !== asked.length) throw new AnswerUnreadable("the results do not fit");
        return results.map((one: Json) => read(integer(one, "status"), JSON.stringify(one)));
      } catch (error) {
        if (!(error instanceof NotaryError)) throw error;
        return same(unknownOutcome(error.detail));
      }
    });
  }

  /** Ask again for what has no final answer yet, until the deadline. */
  async #untilFinal<Asked, Outcome extends Result | Accepted | AcceptedEarly>(
    asked: readonly Asked[],
    ask: (asked: readonly Asked[]) => Promise<Outcome[]>,
  ): Promise<Outcome[]> {
    const { policy } = this.#connection;
    const deadlineS = clockS() + policy.deadlineS;
    const results: Outcome[] = [];
    let missing = asked.map((_, place) => place);
    for (let attempt = 0; ; attempt++) {
      const outcomes = await ask(missing.map((place) => asked[place] as Asked));
      let toldS = 0;
      missing = missing.filter((place, at) => {
        const outcome = outcomes[at] as Outcome;
        // a token that is refused now says nothing of an attempt before, whose outcome is not known
        const keep = attempt === 0 || outcome.kind !== "problem" || !isOfToken(outcome);
        if (keep) results[place] = outcome;
        const result = results[place];
        if (result?.kind !== "not_now") return false;
        toldS = Math.max(toldS, result.retryAfterS);
        return true;
      });
      const delayS = policy.delayS(attempt, toldS, Math.random());
      if (missing.length === 0 || clockS() + delayS > deadlineS) return results;
      await sleepS(delayS);
    }
  }
}

function isLogStatus(status: string): status is LogTransaction["status"] {
  return ["Unknown", "Pending", "Committed", "Invalid"].includes(status);
}

function transactionOf(found: Json): TransactionStatus {
  const by = found["requested_by"] as Json | null | undefined;
  return {
    txId: text(found, "tx_id"),
    contentDigest: text(found, "content_digest"),
    logOffset: integer(found, "log_offset"),
    offset: (found["offset"] as number | null | undefined) ?? null,
    recordedAt: (found["recorded_at"] as string | null | undefined) ?? null,
    requestedBy:
      by === null || by === undefined
        ? null
        : {
            userId: text(by, "user_id"),
            commandId: text(by, "command_id"),
            actAs: by["act_as"] as string[],
            submissionId: text(by, "submission_id"),
          },
  };
}
