import assert from "node:assert/strict";
import { test } from "node:test";

import { encode } from "@msgpack/msgpack";

import { Endpoints, parseEndpoints, seesNobody, turns, usable } from "../src/endpoints.js";
import { ConfigError, NotaryClient, SubmissionStream } from "../src/index.js";
import { newestActive } from "../src/lookout.js";
import { Double, frame, notActive, PARTY, problemDocument, QUICK, type Reply, success, successInFrame, welcome } from "./double.js";

const [A, B, C] = ["https://a:8080", "https://b:8080", "https://c:8080"] as const;
const SLOW = { timeoutS: 60, deadlineS: 5, attemptMaxS: 2 };
const PATIENT = { timeoutS: 0.01, deadlineS: 60, attemptMaxS: 45 };

async function eventually(condition: () => boolean): Promise<void> {
  for (let turn = 0; turn < 400 && !condition(); turn++) await new Promise((resolve) => setTimeout(resolve, 25));
  assert.ok(condition());
}

test("a connection string names its endpoints", () => {
  assert.deepEqual(parseEndpoints("https://a:8080,b:8080,c:8080/"), [A, B, C]);
  assert.deepEqual(parseEndpoints("https://a:8080,b:8080/notary/"), [`${A}/notary`, `${B}/notary`]);
  assert.deepEqual(parseEndpoints([A, `${B}/`]), [A, B]);
  assert.deepEqual(parseEndpoints("http://127.0.0.1:1,[::1]:2"), ["http://127.0.0.1:1", "http://[::1]:2"]);
});

test("a mistake in a connection string is named, and no password repeated", () => {
  const bad = ["", "a:8080", "https://a:1,https://b:1", "https://a,,b", "https://a,", "https://a, b", "https://a:x", "https://a:70000"];
  for (const given of [...bad, "https://a,a", "https://a?x", "https://a#x", "ftp://a", [A, "http://b:1"], [A, "https://b,c"], []]) {
    assert.throws(() => parseEndpoints(given), ConfigError, String(given));
  }
  assert.throws(
    () => parseEndpoints("https://user:secret@b:8080"),
    (error: Error) => !error.message.includes("secret"),
  );
});

test("a list adds live endpoints of the same scheme, and none for a token over plain HTTP", () => {
  const list = { endpoints: ["https://d:1", A, "http://d:1", "https://u@d:1", 7, "https://e:1"].map((url) => ({ url, live: url !== "https://e:1" })) };
  assert.deepEqual(usable(list, [A, B], true), ["https://d:1"]);
  assert.deepEqual(usable({ endpoints: [{ url: "http://d:1", live: true }] }, ["http://127.0.0.1:1"], true), []);
  const many = { endpoints: Array.from({ length: 100 }, (_, n) => ({ url: `https://h${n}:1`, live: true })) };
  assert.equal(usable(many, [A, B], false).length, 14); // 16 with those that were given
  for (const nonsense of [{}, { endpoints: 7 }, { endpoints: [null, 7, {}] }]) assert.deepEqual(usable(nonsense, [A], true), []);
});

test("a round asks each endpoint once", () => {
  const endpoints = new Endpoints([A, B, C]);
  const asked = new Set<string>();
  assert.ok(endpoints.nextOfRound(A, asked));
  assert.ok(endpoints.nextOfRound(B, asked));
  assert.ok(!endpoints.nextOfRound(C, asked));
  assert.equal(asked.size, 0);
  endpoints.takeList(["https://d:1"]);
  assert.deepEqual(endpoints.known, [A, B, C, "https://d:1"]);
  assert.ok(!new Endpoints(A).nextOfRound(A, new Set()));
  assert.ok(turns(0, "") && turns(502, "<html>") && !turns(200, "{}") && !turns(400, ""));
});

test("a call turns at once, with the same bytes, after a refusal and after a connection that broke", async () => {
  const submission = PARTY.sign({});
  const said: Reply[] = [notActive(), null, { body: success(submission) }];
  const seen: string[] = [];
  const doubles = await Promise.all(
    said.map((reply) =>
      Double.start((call) => {
        if (call.method === "POST") seen.push(call.body);
        return call.method === "POST" ? reply : { status: 404, body: "" };
      }),
    ),
  );
  const client = new NotaryClient(doubles.map((one) => one.endpoint), { policy: SLOW });
  try {
    assert.equal((await client.submit(submission)).kind, "notarised");
    assert.equal((await client.submit(submission)).kind, "notarised");
    assert.equal(seen.length, 4); // the one that answered stays in use
    assert.equal(new Set(seen).size, 1);
  } finally {
    client.close();
    doubles.forEach((one) => one.stop());
  }
});

test("a learned endpoint is used once those that were given fail", async () => {
  const submission = PARTY.sign({});
  const third = await Double.start(() => ({ body: success(submission) }));
  let isActive = true;
  const answer = (url: string): Reply => {
    if (url === "/v1/endpoints") return { body: { replica: "r1", endpoints: [{ url: third.endpoint, live: true }] } };
    return isActive ? { body: success(submission) } : notActive();
  };
  const given = await Promise.all([0, 1].map(() => Double.start((call) => answer(call.url))));
  const client = new NotaryClient(given.map((one) => one.endpoint), { policy: QUICK });
  try {
    await client.submit(submission);
    await eventually(() => given[0]?.seen.some((one) => one.url === "/v1/endpoints") === true);
    await new Promise((resolve) => setTimeout(resolve, 300)); // it reads the list
    isActive = false;
    assert.equal((await client.submit(submission)).kind, "notarised");
    assert.equal(third.seen.length, 1);
  } finally {
    client.close();
    [...given, third].forEach((one) => one.stop());
  }
});

test("a stream passes by endpoints where nobody listens", async () => {
  const gone = await Double.start(() => null);
  const endpoint = gone.endpoint;
  gone.stop();
  const stream = new SubmissionStream([endpoint, "http://127.0.0.1:9"], { policy: { ...QUICK, deadlineS: 0.3 } });
  const answer = await stream.submit(PARTY.sign({}));
  assert.equal(answer.kind, "not_now");
  stream.close();
});

test("the newest active is the one to turn to, at a balancer as well", () => {
  const about = (epoch: number, active: boolean) => ({ epoch, active });
  assert.deepEqual(newestActive([[A, about(7, true)], [B, about(8, true)], [C, null]]), [B]);
  assert.deepEqual(newestActive([[A, about(8, true)], [B, about(8, false)], [C, about(8, true)]]), [A, C]);
  assert.deepEqual(newestActive([[A, about(7, false)], [C, null]]), []);
  assert.deepEqual(newestActive([[A, { active: true }], [B, { active: "yes", epoch: 9 }]]), []);
});

/** Replicas that lead or not; a leader that is frozen takes calls and connections, and says nothing. */
class Replicas {
  leader = 0;
  frozen = -1;
  ledgerEnd = 0;
  looks = 0;
  readonly submitted: string[][] = [[], []];
  doubles: Double[] = [];

  static async start(): Promise<Replicas> {
    const found = new Replicas();
    found.doubles = await Promise.all([0, 1].map((one) => found.#start(one)));
    return found;
  }

  get endpoints(): string[] {
    return this.doubles.map((one) => one.endpoint);
  }

  stop(): void {
    this.doubles.forEach((one) => one.stop());
  }

  #start(one: number): Promise<Double> {
    return Double.start(
      ({ method, url, body }) => {
        if (one === this.frozen) return "silence";
        if (url === "/v1/notary") this.looks++;
        if (url === "/v1/notary") return { body: { active: one === this.leader, epoch: 7 + one } };
        if (url.startsWith("/v1/completions")) return one === this.leader ? { body: this.#lines(url), type: "application/x-ndjson", open: true } : notActive();
        if (method !== "POST") return { status: 404, body: problemDocument("NOT_FOUND", 404, "no") };
        this.submitted[one]?.push(body);
        return one === this.leader ? { body: success(PARTY.sign({})) } : notActive();
      },
      (socket) => {
        if (one === this.frozen) return;
        socket.send(welcome(10));
        socket.on("message", (data) => {
          if (one === this.frozen) return;
          this.submitted[one]?.push((data as Buffer).toString("hex"));
          const [, batch] = frame(data);
          const refusal = { type: "not_now", code: "NOT_ACTIVE", detail: "passive", retry_after_s: 0 };
          const answers = batch.map(([number]: [number]) => [number, one === this.leader ? successInFrame(PARTY.sign({})) : refusal]);
          socket.send(encode([2, answers]));
        });
      },
    );
  }

  #lines(url: string): string {
    const after = Number(new URL(url, "http://x").searchParams.get("after"));
    const entry = (offset: number): object => ({ kind: "completion", offset, ...ENTRY });
    const lines = Array.from({ length: this.ledgerEnd - after }, (_, n) => entry(after + 1 + n));
    return lines.map((line) => `${JSON.stringify(line)}\n`).join("");
  }
}

const ENTRY = {
  user_id: "u",
  command_id: "c",
  act_as: [],
  submission_id: "s",
  tx_id: "00".repeat(32),
  content_digest: "00".repeat(32),
  code: "NOTARISED",
  log_offset: 1,
  recorded_at: "2026-01-01T00:00:00Z",
};

test("a quiet feed makes nobody look around", async () => {
  const replicas = await Replicas.start();
  replicas.ledgerEnd = 1;
  const client = new NotaryClient(replicas.endpoints, { policy: PATIENT });
  const feed = client.completions();
  try {
    assert.equal((await feed.next()).value?.offset, 1);
    const next = feed.next();
    await new Promise((resolve) => setTimeout(resolve, 2_600)); // a call would have been looked after twice
    assert.equal(replicas.looks, 0);
    [replicas.frozen, replicas.leader, replicas.ledgerEnd] = [0, 1, 2];
    assert.equal((await client.submit(PARTY.sign({}))).kind, "notarised"); // it finds out, for the feed as well
    assert.equal((await next).value?.offset, 2);
  } finally {
    client.close();
    await feed.return();
    replicas.stop();
  }
});

test("a list of a replica that sees nobody tells nothing", () => {
  const listed = (...live: boolean[]): { endpoints: object[] } => ({ endpoints: live.map((one) => ({ url: "http://c:1", live: one })) });
  assert.deepEqual([listed(false, false), listed(false, true), listed()].map(seesNobody), [true, false, false]);
});

test("calls, streams and feeds leave a frozen active once another one leads", async () => {
  const replicas = await Replicas.start();
  replicas.ledgerEnd = 1;
  const client = new NotaryClient(replicas.endpoints, { policy: PATIENT });
  const stream = client.stream();
  const feed = client.completions();
  try {
    assert.equal((await feed.next()).value?.offset, 1);
    assert.equal((await stream.submit(PARTY.sign({}))).kind, "notarised");
    [replicas.frozen, replicas.ledgerEnd] = [0, 2];
    const beganMs = performance.now();
    let isAnswered = false;
    const waiting = [client.submit(PARTY.sign({})), stream.submit(PARTY.sign({})), feed.next()] as Promise<unknown>[];
    waiting.forEach((one) => void one.then(() => (isAnswered = true)));
    await new Promise((resolve) => setTimeout(resolve, 1_600)); // the other was asked meanwhile, and was not active
    assert.ok(!isAnswered);
    replicas.leader = 1;
    const [called, streamed, next] = (await Promise.all(waiting)) as [{ kind: string }, { kind: string }, { value: { offset: number } }];
    assert.deepEqual([called.kind, streamed.kind, next.value.offset], ["notarised", "notarised", 2]);
    assert.ok(performance.now() - beganMs < 15_000); // usually 3 s; attemptMaxS is 45
    const late = new NotaryClient(replicas.endpoints, { policy: PATIENT }); // begins at the frozen one
    const lateStream = late.stream();
    assert.equal((await lateStream.submit(PARTY.sign({}))).kind, "notarised");
    lateStream.close();
    late.close();
    assert.ok(performance.now() - beganMs < 25_000);
  } finally {
    stream.close();
    client.close();
    await feed.return();
    replicas.stop();
  }
});

test("a slow active is not left, nor a balancer before it", async () => {
  let answer: (reply: Reply) => void = () => undefined;
  const submission = PARTY.sign({});
  let calls = 0;
  const reply = ({ method, url }: { method: string; url: string }): Reply | Promise<Reply> => {
    if (method === "POST") {
      calls++;
      return new Promise((resolve) => (answer = resolve));
    }
    return url === "/v1/notary" ? { body: { active: true, epoch: 7 } } : { status: 404, body: "" };
  };
  const doubles = await Promise.all([0, 1].map(() => Double.start(reply))); // both lead to one replica
  const client = new NotaryClient(doubles.map((one) => one.endpoint), { policy: PATIENT });
  try {
    const waiting = client.submit(submission);
    await new Promise((resolve) => setTimeout(resolve, 2_800));
    answer({ body: success(submission) });
    assert.equal((await waiting).kind, "notarised");
    assert.equal(calls, 1);
  } finally {
    client.close();
    doubles.forEach((one) => one.stop());
  }
});

test("a refusal by the next one settles nothing", async () => {
  const doubles = await Promise.all([null, notActive()].map((said) => Double.start((call) => (call.method === "POST" ? said : { status: 404, body: "" }))));
  const client = new NotaryClient(doubles.map((one) => one.endpoint), { policy: { ...QUICK, deadlineS: 0 } });
  try {
    const answer = await client.submit(PARTY.sign({}));
    assert.equal(answer.kind === "not_now" && answer.code, "OUTCOME_UNKNOWN");
  } finally {
    client.close();
    doubles.forEach((one) => one.stop());
  }
});

test("one endpoint is used alone: no list is asked for, and nobody is asked who leads", async () => {
  const double = await Double.start(async () => {
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    return { body: success(PARTY.sign({})) };
  });
  const client = new NotaryClient(double.endpoint, { policy: PATIENT });
  try {
    assert.equal((await client.submit(PARTY.sign({}))).kind, "notarised");
    assert.deepEqual(double.seen.map((one) => one.method), ["POST"]);
  } finally {
    client.close();
    double.stop();
  }
});

test("a list that is none changes nothing", async () => {
  for (const body of ["", "[]", "{".repeat(5_000), " ".repeat(100_000), '{"endpoints":[{}]}']) {
    const submission = PARTY.sign({});
    const double = await Double.start(({ url }) => ({ body: url === "/v1/endpoints" ? body : success(submission) }));
    const client = new NotaryClient([double.endpoint, "http://127.0.0.1:9"], { policy: QUICK });
    await eventually(() => double.seen.some((one) => one.url === "/v1/endpoints"));
    assert.equal((await client.submit(submission)).kind, "notarised");
    client.close();
    double.stop();
  }
});
