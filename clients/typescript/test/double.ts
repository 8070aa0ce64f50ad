/** A notary that does what a test says: over HTTP, and on its stream. Its answers are signed for real. */

import { createPrivateKey, createPublicKey, sign } from "node:crypto";
import * as http from "node:http";
import type { AddressInfo } from "node:net";

import { encode, decode } from "@msgpack/msgpack";
import { type WebSocket, WebSocketServer } from "ws";

import { contentDigest, Party, type Place, type RetrySettings, type Submission } from "../src/index.js";
import { encodePlace, leafHash } from "../src/receipts.js";

const SEED = Buffer.from("302e020100300506032b657004220420" + "2a".repeat(32), "hex");
const KEY = createPrivateKey({ key: SEED, format: "der", type: "pkcs8" });
export const NOTARY_KEY = createPublicKey(KEY).export({ type: "spki", format: "der" }).subarray(12).toString("hex");
export const PARTY = Party.fromSeed("O=Bank A,L=London,C=GB", "4c".repeat(16), "01".repeat(32));
export const PLACE: Place = { log_id: "raft:log", log_offset: 41, epoch: 7, judged_us: 1_700_000_000_000_000 };
export const QUICK: RetrySettings = { timeoutS: 0.01, deadlineS: 5, attemptMaxS: 2 };

/** `null` breaks the connection; "silence" never answers. `open`: the body goes on. */
export type Reply = { status?: number; body: string | object; type?: string; headers?: http.OutgoingHttpHeaders; open?: boolean } | null | "silence";
type Answering = (seen: Seen, call: number) => Reply | Promise<Reply>;
export interface Seen {
  readonly method: string;
  readonly url: string;
  readonly body: string;
  readonly headers: http.IncomingHttpHeaders;
}

export class Double {
  readonly seen: Seen[] = [];
  readonly #server: http.Server;
  readonly #sockets = new WebSocketServer({ noServer: true });

  private constructor(answer: Answering, stream?: (socket: WebSocket, connection: number) => void) {
    let connections = 0;
    this.#server = http.createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", async () => {
        const { method = "", url = "", headers } = request;
        const seen = { method, url, headers, body: Buffer.concat(chunks).toString("utf8") };
        this.seen.push(seen);
        const reply = await answer(seen, this.seen.length - 1);
        if (reply === "silence") return;
        if (reply === null) return void request.socket.destroy();
        const { status = 200, body, type = "application/json" } = reply;
        response.writeHead(status, { "Content-Type": type, ...reply.headers });
        response.write(typeof body === "string" ? body : JSON.stringify(body));
        if (reply.open !== true) response.end();
      });
    });
    this.#server.on("upgrade", (request, socket, head) => {
      this.#sockets.handleUpgrade(request, socket, head, (one) => stream?.(one, connections++));
    });
  }

  static async start(
    answer: Answering,
    stream?: (socket: WebSocket, connection: number) => void,
  ): Promise<Double> {
    const double = new Double(answer, stream);
    await new Promise<void>((resolve) => double.#server.listen(0, "127.0.0.1", resolve));
    return double;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  stop(): void {
    for (const socket of this.#sockets.clients) socket.terminate();
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

/** The document of a success, with a receipt of a tree of one. */
export function success(submission: Submission, place?: Place): Record<string, unknown> {
  const digest = contentDigest(submission.canonical);
  const where = place === undefined ? undefined : encodePlace(place);
  const root = leafHash(Buffer.from(submission.request.txId, "hex"), digest, where);
  const statement = Buffer.concat([Buffer.from("notary/receipt/2"), Buffer.from([0, 0, 0, 1]), root]);
  const receipt = {
    tx_id: submission.request.txId,
    content_digest: digest.toString("hex"),
    leaf_index: 0,
    tree_size: 1,
    path: [],
    notary_key: NOTARY_KEY,
    signature: sign(null, statement, KEY).toString("hex"),
    version: 2,
    ...(place === undefined ? {} : { place }),
  };
  const { tx_id, content_digest } = receipt;
  const offsets = { log_offset: 41, record_offset: 41, ledger_offset: 1 };
  return { status: 200, code: "NOTARISED", tx_id, content_digest, duplicate: false, receipt, ...offsets };
}

export function problemDocument(code: string, status: number, retry: string, further: object = {}): object {
  return { type: `urn:notary:problem:${code}`, title: code, status, detail: `detail of ${code}`, code, remedy: "", retry, ...further };
}

export function notActive(retryAfterS = 0.01): Reply {
  return { status: 503, body: problemDocument("NOT_ACTIVE", 503, "same", { retry_after_s: retryAfterS }) };
}

/** A success as it stands in a frame: byte strings as bytes. */
export function successInFrame(submission: Submission, place?: Place): object {
  const found = success(submission, place);
  const bytes = (text: unknown): Buffer => Buffer.from(String(text), "hex");
  const receipt = found["receipt"] as Record<string, unknown>;
  const [tx_id, content_digest] = [bytes(found["tx_id"]), bytes(found["content_digest"])];
  const signed = { notary_key: bytes(receipt["notary_key"]), signature: bytes(receipt["signature"]) };
  return { ...found, type: "notarised", tx_id, content_digest, receipt: { ...receipt, tx_id, content_digest, ...signed } };
}

export const welcome = (window: number): Uint8Array => encode([0, 1, window, 100, "r1", Buffer.from(NOTARY_KEY, "hex"), "later"]);
export const frame = (data: unknown): any[] => decode(data as Buffer) as any[];
