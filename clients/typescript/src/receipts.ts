/** Receipts: the notary's signature that a transaction with this content was notarised, checkable offline. */

import { createPublicKey, type KeyObject, verify } from "node:crypto";

import type { Notarised, Place, Receipt } from "./answers.js";
import { fromHex, sha256, uint32 } from "./bytes.js";
import { contentDigest } from "./canonical.js";
import type { Submission } from "./signing.js";

const LEAF = Buffer.from([0]);
const NODE = Buffer.from([1]);
const PATH_MAX = 32;
const VERSION = 2;
const LOG_ID = /^[\x21-\x7e]{1,255}$/;
const ED25519_SPKI_HEAD = Buffer.from("302a300506032b6570032100", "hex");
const P256_SPKI_HEAD = Buffer.from("3059301306072a8648ce3d020106082a8648ce3d030107034200", "hex");
const P256_KEY_BYTES = 65; // the first is 4; a key of Ed25519 has 32

/** Hash of a tree's leaf: certifies the id and exactly its content, and the place. */
export function leafHash(txId: Uint8Array, digest: Uint8Array, place: Uint8Array = new Uint8Array()): Buffer {
  return sha256(LEAF, txId, digest, place);
}

/** The bytes that a leaf commits to, after the content digest. Throws for what has none. */
export function encodePlace(place: Place): Buffer {
  const numbers = [place.log_offset, place.epoch, place.judged_us];
  if (!numbers.every((one) => Number.isSafeInteger(one) && one >= 0) || typeof place.log_id !== "string" || !LOG_ID.test(place.log_id)) {
    throw new RangeError("a place has numbers below 2^53, and a log id of visible characters");
  }
  const head = Buffer.alloc(26);
  numbers.forEach((one, at) => head.writeBigUInt64BE(BigInt(one), 8 * at));
  head.writeUInt16BE(place.log_id.length, 24);
  return Buffer.concat([head, Buffer.from(place.log_id, "ascii")]);
}

/** The root that a path leads to; null when it does not fit a leaf at that place of a tree of that size. */
export function rootFromPath(leaf: Buffer, leafIndex: number, treeSize: number, path: readonly Buffer[]): Buffer | null {
  if (leafIndex < 0 || leafIndex >= treeSize) return null;
  let node = leaf;
  let used = 0;
  for (let index = leafIndex, last = treeSize - 1; last > 0; index = Math.floor(index / 2), last = Math.floor(last / 2)) {
    if (index % 2 === 0 && index >= last) continue; // no sibling on this level
    const sibling = path[used++];
    if (sibling === undefined) return null;
    node = index % 2 === 1 ? sha256(NODE, sibling, node) : sha256(NODE, node, sibling);
  }
  return used === path.length ? node : null;
}

/** Whether a receipt proves, by this key (64 hexadecimal digits, 130 of ECDSA P-256), that the transaction was notarised with its content, and at its place. */
export function verifyReceipt(receipt: Receipt, notaryKey: string): boolean {
  try {
    const key = notaryKeyBytes("notary_key", receipt.notary_key);
    const sizes = [receipt.leaf_index, receipt.tree_size];
    if (!key.equals(notaryKeyBytes("notary_key", notaryKey)) || !sizes.every(Number.isSafeInteger)) return false;
    if (receipt.tree_size >= 2 ** 32 || receipt.path.length > PATH_MAX) return false;
    if (receipt.version !== VERSION) return false;
    const place = receipt.place === undefined ? Buffer.alloc(0) : encodePlace(receipt.place);
    const leaf = leafHash(fromHex("tx_id", receipt.tx_id, 32), fromHex("content_digest", receipt.content_digest, 32), place);
    const path = receipt.path.map((node) => fromHex("path", node, 32));
    const root = rootFromPath(leaf, receipt.leaf_index, receipt.tree_size, path);
    if (root === null) return false;
    const statement = Buffer.concat([Buffer.from(`notary/receipt/${VERSION}`, "ascii"), uint32(receipt.tree_size), root]);
    const signature = fromHex("signature", receipt.signature, 64);
    return key.length === P256_KEY_BYTES
      ? verify("sha256", statement, { key: publicKey(P256_SPKI_HEAD, key), dsaEncoding: "ieee-p1363" }, signature)
      : verify(null, statement, publicKey(ED25519_SPKI_HEAD, key), signature);
  } catch {
    return false; // a field that is none: proves nothing
  }
}

/** Whether a success is the notary's, by its signature, and about exactly what was submitted. */
export function certifies(answer: Notarised, submission: Submission, notaryKey: string): boolean {
  const { receipt } = answer;
  const digest = contentDigest(submission.canonical).toString("hex");
  const same = [receipt.tx_id, answer.txId].every((id) => id.toLowerCase() === submission.request.txId);
  const ofContent = [receipt.content_digest, answer.contentDigest].every((found) => found.toLowerCase() === digest);
  const there = receipt.place === undefined || receipt.place.log_offset === answer.logOffset;
  return same && ofContent && there && verifyReceipt(receipt, notaryKey);
}

/** The bytes of a notary's key, whose length says its algorithm. Throws BadRequest. */
export function notaryKeyBytes(name: string, text: string): Buffer {
  return fromHex(name, text, typeof text === "string" && text.length === 2 * P256_KEY_BYTES && text.startsWith("04") ? P256_KEY_BYTES : 32);
}

function publicKey(head: Buffer, raw: Buffer): KeyObject {
  return createPublicKey({ key: Buffer.concat([head, raw]), format: "der", type: "spki" });
}
