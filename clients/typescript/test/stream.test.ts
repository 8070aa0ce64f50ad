import assert from "node:assert/strict";
import { test } from "node:test";

import { encode } from "@msgpack/msgpack";
import type { WebSocket } from "ws";

import { certifies, type Submission, SubmissionStream } from "../src/index.js";
import { Double, frame, NOTARY_KEY, PARTY, PLACE, QUICK, successInFrame, welcome } from "./double.js";

const fresh = (count: number): Submission[] => Array.from({ length: count }, () => PARTY.sign({}));

async function withStream(
  converse: (socket: WebSocket, connection: number) => void,
  use: (stream: SubmissionStream) => Promise<void>,
  options: object = {},
): Promise<void> {
  const notary = await Double.start(() => null, converse);
  const stream = new SubmissionStream(notary.endpoint, { policy: QUICK, ...options });
  try {
    await use(stream);
  } finally {
    stream.close();
    notary.stop();
  }
}

test("what has no answer is sent again, with the same ids, on the next connection; nothing else is", async () => {
  const all = fresh(250);
  const byCanonical = new Map(all.map((one) => [one.canonical.toString("hex"), one]));
  const received: Map<string, number> = new Map();
  let answered = 0;
  const converse = (socket: WebSocket, connection: number): void => {
    socket.send(welcome(120));
    let open = 0;
    socket.on("message", (data) => {
      const [kind, batch] = frame(data);
      assert.equal(kind, 1);
      assert.ok(batch.length <= 100 && (open += batch.length) <= 120);
      for (const [number, [canonical, publicKey, signature, , , actAs, submissionId]] of batch) {
        const asked = byCanonical.get(Buffer.from(canonical).toString("hex"));
        assert.ok(asked && asked.submissionId === submissionId && actAs[0] === PARTY.name);
        assert.deepEqual([publicKey.length, signature.length], [32, 64]);
        received.set(submissionId, (received.get(submissionId) ?? 0) + 1);
        if (connection === 0 && answered === 70) continue;
        open--;
        answered++;
        socket.send(encode([2, [[number, successInFrame(asked, answered % 2 === 0 ? PLACE : undefined)]], "later"]));
      }
      if (connection === 0 && answered === 70) {
        // Only the pong says that the answers before the ping arrived: a connection that ends with unread data drops what it sent.
        socket.once("pong", () => socket.terminate());
        socket.ping();
      }
    });
  };
  await withStream(converse, async (stream) => {
    const results = await Promise.all(all.map((one) => stream.decide(one)));
    for (const [at, result] of results.entries()) {
      assert.ok(result.kind === "notarised" && certifies(result, all[at] as Submission, NOTARY_KEY));
    }
    assert.ok(results.some((result) => result.kind === "notarised" && result.receipt.version === 2));
    assert.equal(stream.connectionsCount, 2);
    assert.equal(answered, all.length); // none that was answered came again
    assert.ok([...received.values()].every((times) => times <= 2));
  });
});

test("a passive replica is left, a busy one is asked again after its estimate", async () => {
  const submission = PARTY.sign({});
  const seen: string[] = [];
  const converse = (socket: WebSocket, connection: number): void => {
    socket.send(welcome(10));
    socket.on("message", (data) => {
      const [number] = frame(data)[1][0];
      seen.push(`${connection}`);
      const code = ["NOT_ACTIVE", "OVERLOADED"][seen.length - 1];
      const answer = code === undefined ? successInFrame(submission) : { type: "not_now", code, detail: "", retry_after_s: 0.02 };
      socket.send(encode([2, [[number, answer]]]));
    });
  };
  await withStream(converse, async (stream) => {
    assert.equal((await stream.decide(submission)).kind, "notarised");
    assert.deepEqual(seen, ["0", "1", "1"]);
  });
});

test("refusals, rejections, acceptances and the terms of a stream", async () => {
  const id = Buffer.alloc(32, 7);
  const answers = [
    { type: "refused", code: "STATE_CONFLICT", tx_id: id, record_offset: 4, conflicts: [[Buffer.alloc(36, 1), id, "reference"]], judged_us: null, ledger_offset: 9 },
    { type: "refused", code: "TIME_WINDOW_CLOSED", tx_id: id, judged_us: 1_700_000_000_000_000, window: { from_us: null, until_us: 2n ** 63n - 1n } },
    { type: "rejected", code: "PARTY_UNKNOWN", detail: "who?" },
    { type: "accepted", submission_id: "s", estimate_s: 0.5 },
    { type: "not_now", code: "NEWER", detail: "", retry_after_s: 0 },
  ];
  const frames: unknown[][] = [];
  const converse = (socket: WebSocket): void => {
    socket.send(welcome(10));
    socket.on("message", (data) => {
      const [, batch, ...terms] = frame(data);
      frames.push(terms);
      socket.send(encode([2, batch.map(([number]: [number]) => [number, answers[number]])], { useBigInt64: true }));
    });
  };
  await withStream(converse, async (stream) => {
    const [refused, closed, rejected, accepted, unknown] = await Promise.all(
      Array.from({ length: 5 }, () => stream.submit(PARTY.sign({}, { durationS: 86_400 }))),
    );
    assert.ok(refused?.kind === "refused" && refused.final && refused.ledgerOffset === 9);
    assert.deepEqual(refused.conflicts, [{ state: `${"01".repeat(32)}:16843009`, consumedByHash: id.toString("hex"), usage: "reference" }]);
    assert.ok(closed?.kind === "refused" && !closed.final && closed.window?.untilUs === 2n ** 63n - 1n);
    assert.ok(rejected?.kind === "problem" && rejected.code === "PARTY_UNKNOWN");
    assert.deepEqual(accepted, { kind: "accepted", submissionId: "s", estimateS: 0.5, logOffset: null });
    assert.ok(unknown?.kind === "not_now" && unknown.code === "OUTCOME_UNKNOWN");
    assert.deepEqual(frames[0], [true, 86_400, 0]);
  }, { asynchronous: true, deduplication: { durationS: 86_400 }, policy: { ...QUICK, deadlineS: 0.5 } });
});

test("an estimate moves the deadline, and after it the outcome is unknown", async () => {
  const submission = PARTY.sign({});
  const converse = (socket: WebSocket): void => {
    socket.send(welcome(10));
    socket.on("message", (data) => {
      const [number] = frame(data)[1][0];
      socket.send(encode([3, [number], 2]));
      setTimeout(() => socket.send(encode([2, [[number, successInFrame(submission)]]])), 1_000);
    });
  };
  await withStream(converse, async (stream) => assert.equal((await stream.decide(submission)).kind, "notarised"), {
    policy: { ...QUICK, deadlineS: 0.4 },
  });
  await withStream((socket) => socket.send(welcome(10)), async (stream) => assert.equal((await stream.decide(submission)).kind, "not_now"), {
    policy: { ...QUICK, deadlineS: 0.4 },
  });
});

test("whatever is no frame ends the connection, not the client", async () => {
  const submission = PARTY.sign({});
  const nonsense: (string | Uint8Array)[] = ["text", encode({}), Buffer.from([0xc1]), encode([2, []]), encode([4, "NOT_ACTIVE", "bye"])];
  const converse = (socket: WebSocket, connection: number): void => {
    const bad = nonsense[connection];
    socket.send(bad ?? welcome(10));
    socket.on("message", (data) => socket.send(encode([2, [[frame(data)[1][0][0], successInFrame(submission)]]])));
  };
  await withStream(converse, async (stream) => assert.equal((await stream.decide(submission)).kind, "notarised"));
});
