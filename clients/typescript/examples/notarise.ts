import { randomBytes } from "node:crypto";

import { NotaryClient, Party } from "../src/index.js";

const [endpoint, notaryKey, name, keyFile] = process.argv.slice(2) as [string, string, string, string];
const state = `${randomBytes(32).toString("hex")}:0`; // in earnest: an output of an earlier transaction
const client = new NotaryClient(endpoint);
try {
  const party = Party.fromFile(name, (await client.describe()).ledgerId, keyFile);
  const submission = party.sign({ inputs: [state], userId: "treasury" });
  const success = await client.notarise(submission, notaryKey); // retries with the same ids, verifies the receipt
  console.log(`notarised at offset ${success.logOffset}`);
  const found = await client.state(state);
  console.log(`consumed by ${found.consumedBy ?? found.consumedByHash}`);
} finally {
  client.close();
}
