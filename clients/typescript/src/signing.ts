/** Making signed submissions. */

import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject, randomBytes, sign } from "node:crypto";
import { readFileSync, statSync } from "node:fs";

import { fromHex } from "./bytes.js";
import {
  checkCommand,
  encodePeriod,
  encodeRequestWithCommand,
  formatTime,
  type Request,
  sortedTexts,
} from "./canonical.js";
import { BadRequest, ConfigError } from "./errors.js";
import type { TimeWindow } from "./window.js";

export const ANONYMOUS = "anonymous";
const DEDUPLICATION_LIMIT_S = 100 * 366 * 86_400;
const PKCS8_HEAD = Buffer.from("302e020100300506032b657004220420", "hex"); // of an Ed25519 key's 32 bytes
const SPKI_HEAD_BYTES = 12;

/** How far back an acceptance of the same command counts: within `durationS`, or above ledger offset `afterOffset`. */
export type Deduplication = { readonly durationS: number } | { readonly afterOffset: number };

/** A signed request and the command it is submitted under. Keep it, and send it again unchanged until its answer is final. */
export interface Submission {
  readonly request: Request;
  readonly canonical: Buffer;
  readonly publicKey: Buffer;
  readonly signature: Buffer;
  readonly userId: string;
  readonly commandId: string;
  readonly actAs: readonly string[];
  readonly submissionId: string;
  /** The deduplication period; left out: none was asked for. */
  readonly signedPeriod?: Deduplication | undefined;
}

export interface Transaction {
  /** 64 hexadecimal digits; left out: a random one. */
  readonly txId?: string;
  readonly inputs?: readonly string[];
  readonly references?: readonly string[];
  readonly window?: TimeWindow;
  /** Left out: the transaction id, so that the same transaction is the same command. */
  readonly commandId?: string;
  readonly userId?: string;
  /** Left out: the party that signs. */
  readonly actAs?: readonly string[];
  readonly submissionId?: string;
}

/**
 * Someone who asks the notary: an X.500 name, spelt as it is registered, the ledger that it signs for, by its id of 32
 * hexadecimal digits (`describe` tells it), and the key that signs for it.
 */
export class Party {
  readonly #key: KeyObject;
  readonly publicKey: Buffer;

  private constructor(
    readonly name: string,
    readonly ledgerId: string,
    key: KeyObject,
  ) {
    if (key.asymmetricKeyType !== "ed25519") throw new ConfigError("a party signs with an Ed25519 key");
    this.#key = key;
    this.publicKey = createPublicKey(key).export({ type: "spki", format: "der" }).subarray(SPKI_HEAD_BYTES);
  }

  /** From the key file that `notary keys create` makes, PKCS#8 PEM of mode 0600. Throws ConfigError, and BadRequest for no ledger id. */
  static fromFile(name: string, ledgerId: string | null, path: string): Party {
    return Party.fromPem(name, ledgerId, readSecret(path));
  }

  /** From PKCS#8 PEM. Throws ConfigError, and BadRequest for no ledger id. */
  static fromPem(name: string, ledgerId: string | null, pem: string): Party {
    let key: KeyObject;
    try {
      key = createPrivateKey(pem);
    } catch {
      throw new ConfigError("the key is no private key in PKCS#8 PEM"); // never with what it holds
    }
    return new Party(name, known(ledgerId), key);
  }

  /** From the 64 hexadecimal digits of a private key. */
  static fromSeed(name: string, ledgerId: string | null, seed: string): Party {
    const der = Buffer.concat([PKCS8_HEAD, fromHex("a seed", seed, 32)]);
    return new Party(name, known(ledgerId), createPrivateKey({ key: der, format: "der", type: "pkcs8" }));
  }

  /** With a new key, which the operator must register. */
  static generate(name: string, ledgerId: string | null): Party {
    return new Party(name, known(ledgerId), generateKeyPairSync("ed25519").privateKey);
  }

  /**
   * A signed submission; states in any order. The signature covers all but the submission id: nobody who relays it can change
   * it. The user is that of the token, if there is one. Throws BadRequest.
   */
  sign(transaction: Transaction, signedPeriod?: Deduplication): Submission {
    if (signedPeriod !== undefined) checkDeduplication(signedPeriod);
    const request: Request = {
      ledgerId: this.ledgerId,
      txId: (transaction.txId ?? randomBytes(32).toString("hex")).toLowerCase(),
      inputs: transaction.inputs ?? [],
      references: transaction.references ?? [],
      window: transaction.window,
      party: this.name,
    };
    const userId = transaction.userId ?? ANONYMOUS;
    const commandId = transaction.commandId ?? request.txId;
    const actAs = transaction.actAs === undefined ? [this.name] : sortedTexts(transaction.actAs);
    const submissionId = transaction.submissionId ?? randomBytes(16).toString("hex");
    checkCommand(userId, commandId, actAs, submissionId);
    const { durationS, afterOffset } = (signedPeriod ?? {}) as { durationS?: number; afterOffset?: number };
    const canonical = encodeRequestWithCommand(request, { userId, commandId, actAs, period: encodePeriod(durationS, afterOffset) });
    const signature = sign(null, canonical, this.#key);
    const { publicKey } = this;
    return { request, canonical, publicKey, signature, userId, commandId, actAs, submissionId, signedPeriod };
  }
}

/** The ledger id that a replica told. Throws BadRequest where it did not know it yet. */
function known(ledgerId: string | null): string {
  if (ledgerId === null) throw new BadRequest("the replica has not read its log yet: ask again for the ledger's id");
  return fromHex("a ledger id", ledgerId, 16).toString("hex");
}

/** What a secret file holds. Throws ConfigError, KEY_UNSAFE when others may read it. */
export function readSecret(path: string): string {
  try {
    const mode = statSync(path).mode & 0o777;
    if (mode & 0o077) {
      throw new ConfigError(`${path} has mode ${mode.toString(8).padStart(4, "0")}, it must be 0600`, "KEY_UNSAFE");
    }
    return readFileSync(path, "utf8");
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    throw new ConfigError(`${path} cannot be read`);
  }
}

/** The JSON document of a submission. Throws BadRequest for what JSON cannot say, or a period that is none. */
export function submissionDocument(submission: Submission, asked?: Deduplication): object {
  checkSignedPeriod(submission, asked);
  const { request, signedPeriod } = submission;
  const { fromUs, untilUs } = request.window ?? {};
  return {
    request: {
      ledger_id: request.ledgerId,
      tx_id: request.txId,
      inputs: request.inputs,
      references: request.references,
      ...(request.window === undefined
        ? {}
        : {
            time_window: {
              ...(fromUs === undefined ? {} : { from: formatTime(fromUs) }),
              ...(untilUs === undefined ? {} : { until: formatTime(untilUs) }),
            },
          }),
      party: request.party,
      public_key: submission.publicKey.toString("hex"),
      signature: submission.signature.toString("hex"),
    },
    command_id: submission.commandId,
    user_id: submission.userId,
    act_as: submission.actAs,
    submission_id: submission.submissionId,
    ...(signedPeriod === undefined ? {} : { deduplication: deduplicationDocument(signedPeriod) }),
  };
}

/** Refuse a period that the notary would refuse, before anything is sent. Throws BadRequest. */
export function checkDeduplication(deduplication: Deduplication): void {
  const { durationS, afterOffset } = deduplication as { durationS?: number; afterOffset?: number };
  if ((durationS === undefined) === (afterOffset === undefined)) {
    throw new BadRequest("a deduplication period has durationS or afterOffset, and not both");
  }
  if (durationS !== undefined && !(durationS >= 0 && durationS <= DEDUPLICATION_LIMIT_S)) {
    throw new BadRequest(`durationS lies in 0..${DEDUPLICATION_LIMIT_S}, not ${durationS}`);
  }
  if (afterOffset !== undefined && !(Number.isSafeInteger(afterOffset) && afterOffset >= 0)) {
    throw new BadRequest(`afterOffset is a ledger offset, from 0, not ${afterOffset}`);
  }
}

/** Refuse a period other than the one that was signed for. Throws BadRequest. */
export function checkSignedPeriod(submission: Submission, asked?: Deduplication): void {
  if (asked === undefined) return;
  if (JSON.stringify(deduplicationDocument(asked)) !== JSON.stringify(submission.signedPeriod && deduplicationDocument(submission.signedPeriod))) {
    throw new BadRequest("the submission was signed for another deduplication period");
  }
}

function deduplicationDocument(deduplication: Deduplication): object {
  checkDeduplication(deduplication);
  return "durationS" in deduplication
    ? { duration_s: deduplication.durationS }
    : { after_offset: deduplication.afterOffset };
}
