import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Bookmark, type ClientOptions, NotaryClient, RetryPolicy } from "../src/index.js";
import { Double, NOTARY_KEY, notActive, PARTY, PLACE, problemDocument, QUICK, type Reply, type Seen, success } from "./double.js";

const TX_ID = "ab".repeat(32);
const STATE = `${TX_ID}:1`;

async function withNotary(
  answer: (seen: Seen, call: number) => Reply,
  use: (client: NotaryClient, notary: Double) => Promise<void>,
  options: ClientOptions = {},
): Promise<void> {
  const notary = await Double.start(answer);
  const client = new NotaryClient(notary.endpoint, { policy: QUICK, ...options });
  try {
    await use(client, notary);
  } finally {
    client.close();
    notary.stop();
  }
}

test("a submission is sent again with the same bytes until its answer is final", async () => {
  const submission = PARTY.sign({ inputs: [STATE] });
  const replies: Reply[] = [null, notActive(), { status: 502, body: "<html>", type: "text/html" }, { body: "[1" }, { body: success(submission) }];
  await withNotary(
    (_, call) => replies[call] as Reply,
    async (client, notary) => {
      const answer = await client.notarise(submission, NOTARY_KEY);
      assert.equal(answer.logOffset, 41);
      assert.equal(notary.seen.length, replies.length);
      assert.equal(new Set(notary.seen.map((seen) => seen.body)).size, 1);
      assert.equal(JSON.parse(notary.seen[0]?.body ?? "").submission_id, submission.submissionId);
    },
  );
});

test("the server's estimate is waited for", async () => {
  const submission = PARTY.sign({});
  const times: number[] = [];
  await withNotary(
    (_, call) => (times.push(performance.now()), call === 0 ? notActive(0.4) : { body: success(submission) }),
    async (client) => {
      await client.submit(submission);
      assert.ok((times[1] as number) - (times[0] as number) >= 390);
    },
  );
});

test("a refusal is final and typed, and not sent again", async () => {
  const further = {
    tx_id: TX_ID,
    record_offset: 42,
    ledger_offset: 2,
    conflicts: [{ state: STATE, consumed_by_hash: "cd".repeat(32), usage: "input" }],
  };
  const refusal = { status: 409, body: problemDocument("STATE_CONFLICT", 409, "no", further) };
  await withNotary(() => refusal, async (client, notary) => {
    const answer = await client.submit(PARTY.sign({ txId: TX_ID }));
    assert.ok(answer.kind === "refused" && answer.final);
    assert.equal(answer.conflicts[0]?.state, STATE);
    assert.equal(answer.ledgerOffset, 2);
    await assert.rejects(client.notarise(PARTY.sign({ txId: TX_ID }), NOTARY_KEY), { name: "NotarisationRefused", code: "STATE_CONFLICT" });
    assert.equal(notary.seen.length, 2);
  });
});

test("a window that opens later is no final refusal; one that is over is", async () => {
  const body = (judged_at: string): object =>
    problemDocument("TIME_WINDOW_CLOSED", 422, "no", {
      tx_id: TX_ID,
      judged_at,
      time_window: { from: "2030-01-01T00:00:00Z", until: "2030-01-02T01:00:00.000001+01:00" },
    });
  const times = ["2029-12-31T23:59:59.999999Z", "2030-01-02T00:00:00.000001Z"];
  await withNotary((_, call) => ({ status: 422, body: body(times[call] as string) }), async (client) => {
    for (const final of [false, true]) {
      const answer = await client.submit(PARTY.sign({ txId: TX_ID }));
      assert.ok(answer.kind === "refused");
      assert.equal(answer.final, final);
    }
  });
});

test("codes of a newer notary: what may be sent again is unknown, the rest is a problem", async () => {
  const replies: Reply[] = [{ status: 400, body: problemDocument("NEWER", 400, "no") }, { status: 503, body: problemDocument("NEWER", 503, "same") }];
  await withNotary((_, call) => replies[Math.min(call, 1)] as Reply, async (client) => {
    assert.equal((await client.submit(PARTY.sign({}))).kind, "problem");
    const answer = await client.submit(PARTY.sign({}));
    assert.ok(answer.kind === "not_now" && answer.code === "OUTCOME_UNKNOWN");
  }, { policy: { ...QUICK, deadlineS: 0.05 } });
});

test("a receipt is of the offset that the answer names", async () => {
  const submission = PARTY.sign({ txId: TX_ID });
  const bodies = [success(submission, PLACE), success(submission, { ...PLACE, log_offset: 42 })];
  await withNotary((_, call) => ({ body: bodies[Math.min(call, 1)] as object }), async (client) => {
    assert.deepEqual((await client.notarise(submission, NOTARY_KEY)).receipt.place, PLACE);
    await assert.rejects(client.notarise(submission, NOTARY_KEY), { code: "RECEIPT_INVALID" });
  });
});

test("a receipt for other content is no success", async () => {
  const [one, other] = [PARTY.sign({ txId: TX_ID }), PARTY.sign({ txId: TX_ID, inputs: [STATE] })];
  await withNotary(() => ({ body: success(other) }), async (client) => {
    await assert.rejects(client.notarise(one, NOTARY_KEY), { code: "RECEIPT_INVALID" });
    await assert.rejects(client.notarise(other, "00".repeat(32)), { code: "RECEIPT_INVALID" });
    await client.notarise(other, NOTARY_KEY);
  });
});

test("of a batch only what has no final answer is sent again", async () => {
  const batch = [PARTY.sign({}), PARTY.sign({}), PARTY.sign({})] as const;
  const busy = problemDocument("OVERLOADED", 503, "same", { retry_after_s: 0.01 });
  const bad = problemDocument("SIGNATURE_INVALID", 401, "no");
  const replies: Reply[] = [{ body: { results: [success(batch[0]), busy, bad] } }, { body: { results: [] } }, { body: { results: [success(batch[1])] } }];
  await withNotary((_, call) => replies[call] as Reply, async (client, notary) => {
    const kinds = (await client.submitBatch(batch)).map((result) => result.kind);
    assert.deepEqual(kinds, ["notarised", "notarised", "problem"]);
    const sizes = notary.seen.map((seen) => JSON.parse(seen.body).submissions.length);
    assert.deepEqual(sizes, [3, 1, 1]);
  });
});

test("an asynchronous submission is accepted; so is a batch", async () => {
  const accepted = { status: 202, code: "ACCEPTED", submission_id: "s", estimate_s: 0.25, log_offset: 41 };
  const batch = [PARTY.sign({}), PARTY.sign({})] as const;
  const answer = (seen: Seen): Reply => ({ status: 202, body: seen.url.includes("batch") ? { results: [accepted, success(batch[1])] } : accepted });
  await withNotary(answer, async (client) => {
    assert.deepEqual(await client.submitAsync(batch[0]), { kind: "accepted", submissionId: "s", estimateS: 0.25, logOffset: 41 });
    assert.deepEqual((await client.submitBatchAsync(batch)).map((result) => result.kind), ["accepted", "notarised"]);
  });
});

test("an early acceptance names the place in the log, and is no answer", async () => {
  const early = { status: 202, code: "ACCEPTED_EARLY", submission_id: "s", estimate_s: 0.25, log_offset: null, transaction_id: "2.17" };
  const accepted = { status: 202, code: "ACCEPTED", submission_id: "s", estimate_s: 0.25, log_offset: 41 };
  const submission = PARTY.sign({});
  const replies: Reply[] = [
    notActive(),
    { status: 202, body: early },
    { status: 202, body: accepted },
    { body: success(submission) },
    { status: 400, body: problemDocument("EARLY_NOT_OFFERED", 400, "no") },
  ];
  await withNotary((_, call) => replies[call] as Reply, async (client, notary) => {
    assert.deepEqual(await client.submitEarly(submission), { kind: "accepted_early", submissionId: "s", estimateS: 0.25, transactionId: "2.17" });
    assert.deepEqual(await client.submitEarly(submission), { kind: "accepted", submissionId: "s", estimateS: 0.25, logOffset: 41 });
    assert.equal((await client.submitEarly(submission)).kind, "notarised");
    const refused = await client.submitEarly(submission);
    assert.ok(refused.kind === "problem" && refused.code === "EARLY_NOT_OFFERED");
    assert.ok(notary.seen.every((seen) => seen.url === "/v1/submissions/async?accept=early"));
  });
});

test("an early acceptance without a place leaves the outcome unknown", async () => {
  const early = { status: 202, code: "ACCEPTED_EARLY", submission_id: "s", estimate_s: 0.25 };
  await withNotary(() => ({ status: 202, body: early }), async (client) => {
    const answer = await client.submitEarly(PARTY.sign({}));
    assert.ok(answer.kind === "not_now" && answer.code === "OUTCOME_UNKNOWN");
  }, { policy: { ...QUICK, deadlineS: 0.05 } });
});

test("what became of an entry of the log, and what is committed", async () => {
  const entry = { transaction_id: "2.17", status: "Committed", committed: "3.20", log_offset: 41, ledger_offset: null };
  const commit = { transaction_id: "3.20", view_history: [1, 1, 18], view_history_since: 1 };
  const replies: Reply[] = [
    { status: 503, body: problemDocument("LOG_NODES_SILENT", 503, "same", { retry_after_s: 0.01 }) },
    { body: entry },
    { body: { ...entry, status: "Newer" } },
    { body: commit },
    { body: { transaction_id: "3.20" } },
    { status: 404, body: problemDocument("NO_LOG_NODES", 404, "no") },
  ];
  await withNotary((_, call) => replies[call] as Reply, async (client, notary) => {
    const found = await client.logTransaction("2.17");
    assert.deepEqual(found, { transactionId: "2.17", status: "Committed", committed: "3.20", logOffset: 41, ledgerOffset: null });
    await assert.rejects(client.logTransaction("2.17"), { name: "AnswerUnreadable" });
    assert.deepEqual(await client.commit({ viewHistorySince: 1 }), { transactionId: "3.20", viewHistory: [1, 1, 18], viewHistorySince: 1 });
    assert.deepEqual(await client.commit(), { transactionId: "3.20", viewHistory: null, viewHistorySince: null });
    await assert.rejects(client.commit(), { name: "RequestRejected", code: "NO_LOG_NODES" });
    const asked = ["/v1/log/2.17", "/v1/log/2.17", "/v1/log/2.17", "/v1/commit?view_history_since=1", "/v1/commit", "/v1/commit"];
    assert.deepEqual(notary.seen.map((seen) => seen.url), asked);
  });
});

test("estimates may come before an answer", async () => {
  const submission = PARTY.sign({});
  const lines = [{ kind: "wait", estimate_s: 12.5 }, { kind: "wait", estimate_s: 3 }, success(submission)];
  const body = lines.map((line) => JSON.stringify(line) + "\n").join("");
  await withNotary(() => ({ body, type: "application/x-ndjson" }), async (client, notary) => {
    const told: number[] = [];
    const answer = await client.submit(submission, { onWait: (estimateS) => told.push(estimateS) });
    assert.equal(answer.kind, "notarised");
    assert.deepEqual(told, [12.5, 3]);
    assert.match(notary.seen[0]?.headers.accept ?? "", /x-ndjson/);
  });
});

test("a bad deduplication period, key or offset is refused before anything is sent", async () => {
  await withNotary(() => null, async (client, notary) => {
    const submission = PARTY.sign({});
    for (const deduplication of [{ durationS: -1 }, { durationS: NaN }, { afterOffset: 0.5 }, { durationS: 1, afterOffset: 1 }]) {
      await assert.rejects(client.submit(submission, { deduplication }), { code: "MALFORMED_REQUEST" });
    }
    await assert.rejects(client.notarise(submission, "ab"), { code: "MALFORMED_REQUEST" });
    await assert.rejects(client.completions({ after: -1 }).next(), { code: "MALFORMED_REQUEST" });
    await assert.rejects(client.lookUp("ab"), { code: "MALFORMED_REQUEST" });
    const late = PARTY.sign({ window: { untilUs: 2n ** 63n - 1n } });
    await assert.rejects(client.submit(late), { code: "MALFORMED_REQUEST" });
    assert.equal(notary.seen.length, 0);
  });
});

test("completions go on after the last offset, without a gap or a duplicate", async () => {
  const line = (offset: number): object => ({
    kind: "completion", offset, user_id: "u", command_id: "c", act_as: ["O=A"], submission_id: "s", tx_id: TX_ID, content_digest: TX_ID,
    code: "NOTARISED", log_offset: offset, notarised_offset: offset, recorded_at: "2026-01-02T03:04:05.000006Z", conflicts: [],
  });
  const end = { kind: "end", offset: 3, problem: problemDocument("NOT_ACTIVE", 503, "same", { retry_after_s: 0.01 }) };
  const pruned = problemDocument("OFFSET_PRUNED", 410, "no", { pruned_to: 9 });
  const text = (...lines: object[]): string => lines.map((one) => JSON.stringify(one) + "\n").join("");
  const replies: Reply[] = [
    { body: text(line(1), line(2)) + JSON.stringify(line(3)).slice(0, 20), type: "application/x-ndjson" },
    notActive(),
    null,
    { body: text(line(3), end), type: "application/x-ndjson" },
    { body: text({ kind: "checkpoint", offset: 7 }), type: "application/x-ndjson" },
    { body: text(line(7), line(8)), type: "application/x-ndjson" },
    { body: text(line(8)), type: "application/x-ndjson" },
    { status: 410, body: pruned },
  ];
  await withNotary((_, call) => replies[call] as Reply, async (client, notary) => {
    const offsets: number[] = [];
    await assert.rejects(async () => {
      for await (const completion of client.completions({ userId: "u", parties: ["O=A,C=GB"] })) offsets.push(completion.offset);
    }, { name: "StreamEnded", code: "OFFSET_PRUNED" });
    assert.deepEqual(offsets, [1, 2, 3, 8]);
    const asked = notary.seen.map((seen) => new URL(seen.url, notary.endpoint).searchParams.get("after"));
    assert.deepEqual(asked, ["0", "2", "2", "2", "3", "7", "7", "8"].slice(0, asked.length));
    assert.match(notary.seen[0]?.url ?? "", /party=O%3DA%2CC%3DGB&user_id=u&follow=true$/);
  });
});

test("a bookmark of another ledger is refused, and one of this goes on", async () => {
  const vectors = JSON.parse(readFileSync(new URL("../../../../tests/golden/vectors/bookmarks.json", import.meta.url), "utf8")) as { entry: Record<string, unknown>; bookmark: string }[];
  const { entry, bookmark } = vectors[0] as (typeof vectors)[0];
  const kept = Bookmark.parse(bookmark);
  const line = (change: object, kind: string): string => JSON.stringify({ kind, user_id: "u", command_id: "c", act_as: [], submission_id: "s", code: "NOTARISED", ...entry, ...change }) + "\n";
  const next = { offset: kept.offset + 1 };
  for (const kind of ["completion", "update"] as const) {
    const read = (client: NotaryClient) => (kind === "completion" ? client.completions({ after: kept }) : client.updates({ after: kept }));
    await withNotary(() => ({ body: line({}, kind) + line(next, kind), open: true }), async (client, notary) => {
      assert.equal((await read(client).next()).value?.offset, next.offset);
      assert.match(notary.seen[0]?.url ?? "", new RegExp(`after=${kept.offset - 1}&`));
    });
    for (const change of [{ recorded_at: "2026-01-02T03:04:05.000007Z" }, { tx_id: "00".repeat(32) }, { content_digest: "00".repeat(32) }, { log_offset: 1 }, next]) {
      await withNotary(() => ({ body: line(change, kind) + line(next, kind), open: true }), async (client) => {
        await assert.rejects(read(client).next(), { name: "StreamEnded", code: "LEDGER_CHANGED", after: kept.offset });
      });
    }
  }
  const pruned = (pruned_to: number): Reply => ({ status: 410, body: problemDocument("OFFSET_PRUNED", 410, "no", { pruned_to }) });
  const replies: Reply[] = [pruned(kept.offset), { body: line(next, "completion"), open: true }, pruned(kept.offset + 1)];
  await withNotary((_, call) => replies[call] as Reply, async (client) => {
    assert.equal((await client.completions({ after: kept }).next()).value?.offset, next.offset);
    await assert.rejects(client.completions({ after: kept }).next(), { code: "OFFSET_PRUNED" });
  });
});

test("questions are asked until a replica serves them", async () => {
  const answer = (seen: Seen, call: number): Reply => {
    if (call === 0) return notActive();
    if (seen.url.endsWith("/status")) return { status: 404, body: problemDocument("TX_NOT_FOUND", 404, "no", { tx_id: TX_ID }) };
    if (seen.url.startsWith("/v1/states")) return { body: { state: STATE, consumed: false, consumed_by_hash: null, consumed_by: null, log_offset: null } };
    return { body: { ledger_end: 3, pruned_to: 0 } };
  };
  await withNotary(answer, async (client) => {
    assert.deepEqual(await client.ledgerEnd(), { ledgerEnd: 3, prunedTo: 0 });
    assert.equal(await client.transaction(TX_ID), null);
    assert.equal((await client.state(STATE)).consumed, false);
  });
});

test("a token that is refused is asked for anew, once", async () => {
  const invalid = { status: 401, body: problemDocument("TOKEN_INVALID", 401, "no") };
  let asked = 0;
  const answer = (seen: Seen): Reply => (seen.headers.authorization === "Bearer t2" ? { body: { ledger_end: 1, pruned_to: 0 } } : invalid);
  await withNotary(answer, async (client, notary) => {
    assert.equal((await client.ledgerEnd()).ledgerEnd, 1);
    assert.deepEqual([asked, notary.seen.length], [2, 2]);
  }, { access: { token: () => `t${++asked}` } });
  await withNotary(answer, async (client, notary) => {
    await assert.rejects(client.ledgerEnd(), { code: "TOKEN_INVALID" });
    assert.equal(notary.seen.length, 1);
  }, { access: { token: "secret" } });
});

test("a token refused on a later attempt says nothing of the first, whose outcome is unknown", async () => {
  const invalid = { status: 401, body: problemDocument("TOKEN_INVALID", 401, "no") };
  await withNotary((_, call) => (call === 0 ? notActive() : invalid), async (client) => {
    assert.equal((await client.submit(PARTY.sign({}))).kind, "not_now");
  }, { access: { token: "secret" } });
});

test("secrets are kept: modes, plain HTTP, texts of errors", async () => {
  const file = join(mkdtempSync(join(tmpdir(), "notary-")), "token");
  writeFileSync(file, "t1\n");
  chmodSync(file, 0o644);
  const make = (endpoint: string, access: object): NotaryClient => new NotaryClient(endpoint, { access });
  assert.throws(() => make("http://notary.example:8080", { token: "t" }), { code: "PLAINTEXT_EXPOSED" });
  assert.throws(() => make("http://127.example.com", { token: "t" }), { code: "PLAINTEXT_EXPOSED" });
  assert.throws(() => make("http://127.0.0.1:1", { caFile: file }), { code: "CONFIG_INVALID" });
  assert.throws(() => make("https://notary.example", { certificateFile: file }), { code: "CONFIG_INVALID" });
  assert.throws(() => make("ftp://notary.example", {}), { code: "CONFIG_INVALID" });
  assert.throws(() => make("http://127.0.0.1:1", { token: "two words" }), (error: Error) => !error.message.includes("two words"));
  await assert.rejects(make("http://127.0.0.1:1", { token: { file } }).ledgerEnd(), { code: "KEY_UNSAFE" });
  chmodSync(file, 0o600);
  await withNotary((seen) => ({ body: { ledger_end: seen.headers.authorization === "Bearer t1" ? 1 : 0, pruned_to: 0 } }), async (client) => {
    assert.equal((await client.ledgerEnd()).ledgerEnd, 1);
    writeFileSync(file, "another");
    assert.equal((await client.ledgerEnd()).ledgerEnd, 0);
  }, { access: { token: { file } } });
});

test("pauses grow, and an absurd estimate holds up nobody", () => {
  const policy = new RetryPolicy({ timeoutS: 1, backoffBase: 2, maxRestartCount: 2, jitter: 0.5, estimateMaxS: 60 });
  assert.deepEqual([0, 1, 2, 9].map((attempt) => policy.delayS(attempt, 0, 0)), [1, 2, 4, 4]);
  assert.equal(policy.delayS(0, 0, 0.5), 1.25);
  assert.deepEqual([3, 1e9, -1, NaN].map((estimateS) => policy.delayS(0, estimateS, 0)), [3, 60, 1, 1]);
  assert.throws(() => new RetryPolicy({ timeoutS: 0 }), { code: "CONFIG_INVALID" });
});
