/**
 * Submits COUNT transactions in every way that the client knows, over some seconds, and reads their completions:
 * `node failover.js ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT`. One JSON document a line: each success and the way that it was
 * submitted, each completion, and last how many receipts verified. Any answer but a success ends it with an error.
 */

import { type Accepted, certifies, NotaryClient, Party, type Result, type Submission, successOf } from "../src/index.js";

const [endpoint, notaryKey, name, keyFile, countText] = process.argv.slice(2) as [string, string, string, string, string];
const PAUSE_MS = 25;
const GROUP = 4; // of which one is submitted by each way, but for the batch, which has two
const count = Number(countText);
const client = new NotaryClient(endpoint, { policy: { deadlineS: 60 } });
const party = Party.fromFile(name, (await client.describe()).ledgerId, keyFile);
const stream = client.stream();
const before = await client.ledgerEnd();
const submitted = new Map<string, Submission>();
let verified = 0;

function fresh(): Submission {
  const state = `${Buffer.from(crypto.getRandomValues(new Uint8Array(32))).toString("hex")}:0`;
  const submission = party.sign({ inputs: [state], userId: "failover" });
  submitted.set(submission.request.txId, submission);
  return submission;
}

function tell(way: string, submission: Submission, result: Result): void {
  const success = successOf(result);
  if (!certifies(success, submission, notaryKey)) throw new Error(`the receipt of ${success.txId} does not verify`);
  verified++;
  const { txId, contentDigest, logOffset, receipt } = success;
  console.log(JSON.stringify({ kind: "success", way, tx_id: txId, content_digest: contentDigest, log_offset: logOffset, receipt }));
}

async function group(turn: number): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, turn * PAUSE_MS));
  const [one, streamed, ...batch] = [fresh(), fresh(), fresh(), fresh()] as [Submission, Submission, ...Submission[]];
  await Promise.all([
    client.submit(one).then((result) => tell("call", one, result)),
    stream.decide(streamed).then((result) => tell("stream", streamed, result)),
    client.submitBatch(batch).then((results) => results.forEach((result, at) => tell("batch", batch[at] as Submission, result))),
  ]);
}

/** One that does not wait: recorded first, its outcome is a completion. */
async function unattended(): Promise<void> {
  const submission = fresh();
  const accepted: Result | Accepted = await client.submitAsync(submission);
  if (accepted.kind !== "accepted") tell("call", submission, accepted);
}

async function read(total: number): Promise<void> {
  const seen = new Set<string>();
  for await (const completion of client.completions({ after: before.ledgerEnd, userId: "failover" })) {
    const { offset, txId, code, logOffset } = completion;
    if (!submitted.has(txId)) continue;
    console.log(JSON.stringify({ kind: "completion", offset, tx_id: txId, code, log_offset: logOffset }));
    if (seen.add(txId).size === total) return;
  }
}

const groups = Math.floor(count / GROUP);
const reading = read(groups * GROUP + 1);
await Promise.all(Array.from({ length: groups }, (_, turn) => group(turn)));
await unattended();
await reading;
console.log(JSON.stringify({ kind: "end", submitted: submitted.size, verified, connections: stream.connectionsCount }));
stream.close();
client.close();
