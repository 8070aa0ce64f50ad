import assert from "node:assert/strict";
import { test } from "node:test";

import { Endpoints, parseEndpoints, turns, usable } from "../src/endpoints.js";
import { ConfigError, NotaryClient, SubmissionStream } from "../src/index.js";
import { Double, notActive, PARTY, QUICK, type Reply, success } from "./double.js";

const [A, B, C] = ["https://a:8080", "https://b:8080", "https://c:8080"] as const;
const SLOW = { timeoutS: 60, deadlineS: 5, attemptMaxS: 2 };

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
    await new Promise((resolve) => setTimeout(resolve, 300)); // for the list
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
