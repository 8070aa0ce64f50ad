/**
 * Submits COUNT transactions, asks for their places in the log at once, and then what became of each:
 * `node early.js ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT`, where the log is on log nodes. One JSON document a line.
 */

import { randomBytes } from "node:crypto";
import { setTimeout } from "node:timers/promises";

import { NotaryClient, Party } from "../src/index.js";

const [endpoint, , name, keyFile, countText] = process.argv.slice(2) as [string, string, string, string, string];
const LOOK_MS = 10;
const client = new NotaryClient(endpoint);
const party = Party.fromFile(name, (await client.describe()).ledgerId, keyFile);
try {
  for (let at = 0; at < Number(countText); at++) {
    const state = `${randomBytes(32).toString("hex")}:0`;
    const answer = await client.submitEarly(party.sign({ inputs: [state], userId: "early" }));
    if (answer.kind !== "accepted_early") throw new Error(`not early: ${answer.kind}`);
    let found = await client.logTransaction(answer.transactionId);
    while (found.status !== "Invalid" && found.logOffset === null) {
      await setTimeout(LOOK_MS);
      found = await client.logTransaction(answer.transactionId);
    }
    console.log(JSON.stringify({ kind: found.status, place: answer.transactionId, log_offset: found.logOffset }));
  }
} finally {
  client.close();
}
