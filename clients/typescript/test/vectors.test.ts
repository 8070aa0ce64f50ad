/** The very golden files that the notary's own tests read. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { parseStateRef } from "../src/canonical.js";
import { Bookmark, changeId, contentDigest, encodeRequest, Party, type Receipt, RETRY_BY_CODE, verifyReceipt } from "../src/index.js";
import { updateOf } from "../src/feeds.js";
import { submissionDocument } from "../src/signing.js";
import { leafHash, rootFromPath } from "../src/receipts.js";

const ROOT = new URL("../../../../", import.meta.url);
const read = (path: string): string => readFileSync(new URL(path, ROOT), "utf8");
const golden = (path: string): any => JSON.parse(read(`tests/golden/${path}`));
const hex = (text: string): Buffer => Buffer.from(text, "hex");

for (const vector of golden("vectors/canonical.json")) {
  test(`canonical bytes and digest of a request: ${vector.name}`, () => {
    const ends = {
      ...(vector.from_us === null ? {} : { fromUs: BigInt(vector.from_us) }),
      ...(vector.until_us === null ? {} : { untilUs: BigInt(vector.until_us) }),
    };
    const window = Object.keys(ends).length === 0 ? {} : { window: ends };
    const { party, references } = vector;
    const ids = { ledgerId: vector.ledger_id, txId: vector.tx_id };
    const raw = encodeRequest({ ...ids, inputs: [...vector.inputs].reverse(), references, party, ...window });
    assert.equal(raw.toString("hex"), vector.request);
    assert.equal(contentDigest(raw).toString("hex"), vector.content_digest);
  });
}

for (const vector of golden("vectors/canonical_signed.json")) {
  test(`canonical bytes, digest and signature: ${vector.name}`, () => {
    const ends = {
      ...(vector.from_us === null ? {} : { fromUs: BigInt(vector.from_us) }),
      ...(vector.until_us === null ? {} : { untilUs: BigInt(vector.until_us) }),
    };
    const window = Object.keys(ends).length === 0 ? {} : { window: ends };
    const party = Party.fromSeed(vector.party, vector.ledger_id, vector.party_seed);
    const command = { userId: vector.user_id, commandId: vector.command_id, actAs: vector.act_as };
    const period =
      vector.duration_s !== null
        ? { durationS: vector.duration_s as number }
        : vector.after_offset !== null
          ? { afterOffset: vector.after_offset as number }
          : undefined;
    const transaction = { txId: vector.tx_id, inputs: vector.inputs, references: vector.references, ...window, ...command };
    const signed = party.sign(transaction, period);
    assert.equal(signed.canonical.toString("hex"), vector.canonical);
    assert.equal(contentDigest(signed.canonical).toString("hex"), vector.content_digest);
    assert.equal(party.publicKey.toString("hex"), vector.party_public_key);
    assert.equal(signed.signature.toString("hex"), vector.signature);
    const document = submissionDocument(signed) as { deduplication?: object };
    assert.equal(document.deduplication !== undefined, period !== undefined);
  });
}

test("another period than the signed one is not sent", () => {
  const signed = Party.generate("O=A", "4c".repeat(16)).sign({}, { durationS: 60 });
  assert.throws(() => submissionDocument(signed, { durationS: 61 }), { code: "MALFORMED_REQUEST" });
  assert.throws(() => submissionDocument(signed, { afterOffset: 60 }), { code: "MALFORMED_REQUEST" });
  assert.throws(() => submissionDocument(Party.generate("O=A", "4c".repeat(16)).sign({}), { durationS: 60 }), { code: "MALFORMED_REQUEST" });
  assert.deepEqual(submissionDocument(signed, { durationS: 60 }), submissionDocument(signed));
});

test("change ids", () => {
  for (const vector of golden("vectors/change_id.json")) {
    assert.equal(changeId(vector.user_id, vector.command_id, vector.act_as).toString("hex"), vector.change_id);
  }
});

test("Merkle roots, for every leaf of every size", () => {
  const { leaves, root_of_the_first: roots } = golden("vectors/merkle.json") as {
    leaves: string[];
    root_of_the_first: Record<string, string>;
  };
  for (const [size, root] of Object.entries(roots)) {
    const level = leaves.slice(0, Number(size)).map(hex);
    for (let at = 0; at < level.length; at++) {
      assert.equal(rootFromPath(level[at] as Buffer, at, level.length, pathOf(level, at))?.toString("hex"), root);
    }
  }
});

test("receipts of a key of P-256 verify, and nothing that was changed does", () => {
  const { notary_public_key: key, receipts } = golden("vectors/receipts_p256.json") as { notary_public_key: string; receipts: Receipt[] };
  const other = (golden("vectors/receipts.json") as { notary_public_key: string }).notary_public_key;
  assert.equal(receipts.length, 4);
  const noPoint = key.slice(0, 128) + (key.endsWith("00") ? "01" : "00");
  for (const receipt of receipts) {
    assert.ok(verifyReceipt(receipt, key));
    assert.ok(!verifyReceipt(receipt, other));
    for (const name of ["tx_id", "content_digest", "signature"] as const) {
      const bad = (receipt[name].startsWith("0") ? "1" : "0") + receipt[name].slice(1);
      assert.ok(!verifyReceipt({ ...receipt, [name]: bad }, key), name);
      assert.ok(!verifyReceipt({ ...receipt, [name]: receipt[name].slice(2) }, key), `a short ${name}`);
    }
    assert.ok(!verifyReceipt({ ...receipt, signature: "00".repeat(64) }, key));
    assert.ok(!verifyReceipt({ ...receipt, notary_key: noPoint }, noPoint));
  }
});

test("receipts verify, and nothing that was changed does", () => {
  const { notary_public_key: key, receipts } = golden("vectors/receipts.json") as { notary_public_key: string; receipts: Receipt[] };
  const all = [...receipts, golden("receipts/version-2/of-one.json"), golden("receipts/version-2/of-five.json")] as Receipt[];
  for (const receipt of all) {
    assert.ok(verifyReceipt(receipt, key));
    assert.ok(!verifyReceipt(receipt, "00".repeat(32)));
    for (const name of ["tx_id", "content_digest", "notary_key", "signature"] as const) {
      const bad = (receipt[name].startsWith("0") ? "1" : "0") + receipt[name].slice(1);
      assert.ok(!verifyReceipt({ ...receipt, [name]: bad }, key), name);
      assert.ok(!verifyReceipt({ ...receipt, [name]: receipt[name].slice(2) }, key), `a short ${name}`);
    }
    assert.ok(!verifyReceipt({ ...receipt, tree_size: receipt.tree_size + 8 }, key));
    assert.ok(!verifyReceipt({ ...receipt, tree_size: receipt.tree_size + 2 ** 32 }, key));
    assert.ok(!verifyReceipt({ ...receipt, leaf_index: -1 }, key));
    assert.ok(!verifyReceipt({ ...receipt, path: [...receipt.path, "00".repeat(32)] }, key));
  }
});

test("a receipt's place and version verify, and nothing that was changed does", () => {
  const { notary_public_key: key, receipts } = golden("vectors/receipts.json") as { notary_public_key: string; receipts: Receipt[] };
  const placed = receipts.filter((one) => one.place !== undefined);
  const bare = receipts.filter((one) => one.place === undefined);
  assert.deepEqual([placed.length, bare.length], [3, 1]);
  for (const receipt of placed) {
    const place = receipt.place!;
    const others = [
      ...["log_offset", "epoch", "judged_us"].flatMap((name) =>
        [1, 0.5, -1e16, 2 ** 53].map((more) => ({ [name]: place[name as "epoch"] + more })),
      ),
      ...[`${place.log_id}x`, "", "é", place.log_id.slice(1)].map((log_id) => ({ log_id })),
    ];
    for (const other of others) {
      assert.ok(!verifyReceipt({ ...receipt, place: { ...place, ...other } }, key), JSON.stringify(other));
    }
    const { place: _, ...placeless } = receipt;
    const { version: __, ...versionless } = receipt;
    assert.ok(!verifyReceipt(placeless, key));
    assert.ok(!verifyReceipt(versionless as Receipt, key));
    for (const version of [0, 1, 3]) assert.ok(!verifyReceipt({ ...receipt, version }, key), `version ${version}`);
    assert.ok(!verifyReceipt({ ...receipt, tx_id: "ab".repeat(32) }, key));
  }
  assert.ok(!verifyReceipt({ ...bare[0]!, place: placed[0]!.place! }, key));
});

test("a state's text is read exactly", () => {
  const id = "ab".repeat(32);
  assert.equal(parseStateRef(`${id}:4294967295`).toString("hex"), `${id}ffffffff`);
  for (const bad of [id, `${id}:`, `${id}:4294967296`, `${id}:-1`, `${id}: 1`, `${id.slice(1)}:1`, `${id}:٣`, `${id}:1\n`]) {
    assert.throws(() => parseStateRef(bad), { code: "MALFORMED_REQUEST" }, bad);
  }
});

test("what the notary would refuse is refused before it is signed", () => {
  const party = Party.generate("O=Bank A,L=London,C=GB", "4c".repeat(16));
  const [one, id] = [`${"ab".repeat(32)}:1`, "cd".repeat(32)];
  const refused: [object, string?][] = [
    [{ txId: "cd" }],
    [{ inputs: [one, one.toUpperCase()] }],
    [{ inputs: [one], references: [one] }],
    [{ inputs: Array.from({ length: 10_000 }, (_, at) => `${id}:${at}`) }, "TOO_MANY_STATES"],
    [{ window: {} }],
    [{ window: { fromUs: 2n, untilUs: 2n } }],
    [{ window: { untilUs: -1n } }],
    [{ window: { untilUs: 2n ** 63n } }],
    [{ commandId: "" }],
    [{ userId: "x".repeat(256) }],
    [{ commandId: "line\u2028end" }],
    [{ submissionId: "half \ud800 pair" }],
    [{ actAs: [] }],
    [{ actAs: ["O=A", "O=A"] }],
    [{ actAs: Array.from({ length: 17 }, (_, at) => `O=${at}`) }],
  ];
  for (const [transaction, code = "MALFORMED_REQUEST"] of refused) {
    assert.throws(() => party.sign(transaction), { code }, JSON.stringify(transaction, (_, one) => String(one)).slice(0, 80));
  }
  assert.throws(() => Party.generate("", "4c".repeat(16)).sign({}), { code: "MALFORMED_REQUEST" });
  assert.throws(() => encodeRequest({ ledgerId: "4c".repeat(16), txId: id, inputs: [], references: [], party: "é".repeat(257) }), { code: "MALFORMED_REQUEST" });
});

test("the parties of a command are sorted by their UTF-8", () => {
  const party = Party.generate("O=A", "4c".repeat(16));
  assert.deepEqual(party.sign({ actAs: ["O=\u{1f600}", "O=\uff5e", "O=A"] }).actAs, ["O=A", "O=\uff5e", "O=\u{1f600}"]);
});

test("a bookmark is the same text in every language, and a text that is none is refused", () => {
  for (const { entry, bookmark } of golden("vectors/bookmarks.json")) {
    assert.equal(String(Bookmark.of(updateOf({ act_as: [], ...entry }))), bookmark);
  }
  for (const text of ["", "7", `0-${"0".repeat(32)}`, `7-${"g".repeat(32)}`, `${2 ** 53}-${"0".repeat(32)}`]) {
    assert.throws(() => Bookmark.parse(text), { name: "BadRequest" });
  }
});

test("codes and their retry are those of the catalogue", () => {
  const rows = [...read("docs/errors.md").matchAll(/^- `([A-Z_]+)` \((?:(\d{3})|\d)?(?:, )?(no|same)?\)/gm)];
  const catalogue = new Map(rows.map(([, code, , retry]) => [code, retry ?? "no"]));
  for (const [, code, status] of rows) if (status !== undefined) assert.ok(Object.hasOwn(RETRY_BY_CODE, code as string), code);
  for (const [code, retry] of Object.entries(RETRY_BY_CODE)) assert.equal(retry, catalogue.get(code), code);
  assert.ok(rows.length > 40);
});

function pathOf(level: Buffer[], at: number): Buffer[] {
  if (level.length === 1) return [];
  const sibling = level[at ^ 1];
  const parents: Buffer[] = [];
  for (let left = 0; left < level.length; left += 2) {
    const [one, other] = [level[left] as Buffer, level[left + 1]];
    parents.push(other === undefined ? one : parentOf(one, other));
  }
  return [...(sibling === undefined ? [] : [sibling]), ...pathOf(parents, at >> 1)];
}

function parentOf(one: Buffer, other: Buffer): Buffer {
  const root = rootFromPath(one, 0, 2, [other]);
  assert.ok(root);
  return root;
}

test("a leaf is hashed in a domain of its own", () => {
  const vector = golden("vectors/receipts.json").receipts[0] as Receipt;
  assert.notDeepEqual(leafHash(hex(vector.tx_id), hex(vector.content_digest)), parentOf(hex(vector.tx_id), hex(vector.content_digest)));
});
