/** Hexadecimal text and big-endian integers. */

import { createHash } from "node:crypto";

import { BadRequest } from "./errors.js";

const HEX = /^(?:[0-9a-fA-F]{2})*$/;

/** `size` bytes from exactly their hexadecimal digits. Throws BadRequest naming the field. */
export function fromHex(name: string, text: string, size: number): Buffer {
  if (typeof text !== "string" || text.length !== 2 * size || !HEX.test(text)) {
    throw new BadRequest(`${name} is ${2 * size} hexadecimal digits`);
  }
  return Buffer.from(text, "hex");
}

export function uint16(value: number): Buffer {
  const raw = Buffer.alloc(2);
  raw.writeUInt16BE(value);
  return raw;
}

export function uint32(value: number): Buffer {
  const raw = Buffer.alloc(4);
  raw.writeUInt32BE(value);
  return raw;
}

export function uint64(value: bigint): Buffer {
  const raw = Buffer.alloc(8);
  raw.writeBigUInt64BE(value);
  return raw;
}

export function sha256(...parts: Uint8Array[]): Buffer {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest();
}

/** Refuse what is no ledger offset, before it is asked for. Throws BadRequest. */
export function checkOffset(name: string, offset: number): void {
  if (!Number.isSafeInteger(offset) || offset < 0) throw new BadRequest(`${name} is a ledger offset, from 0, not ${offset}`);
}
