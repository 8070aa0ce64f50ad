/**
 * Reads COUNT completions, from a kept bookmark on: `node resume.js ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT [BOOKMARK]`. One JSON
 * document a line: each completion with its bookmark, or that the bookmark is of another ledger.
 */

import { Bookmark, NotaryClient, StreamEnded } from "../src/index.js";

const [endpoint, , , , countText, kept] = process.argv.slice(2) as [string, string, string, string, string, string?];
let left = Number(countText);
if (!Number.isInteger(left) || left < 1) {
  console.error(`COUNT is how many completions to read, 1 or more, not '${countText}'`);
  process.exit(1);
}
const client = new NotaryClient(endpoint);
try {
  for await (const { offset, ...rest } of client.completions({ userId: "resume", ...(kept && { after: Bookmark.parse(kept) }) })) {
    const bookmark = Bookmark.of({ offset, ...rest }).toString();
    console.log(JSON.stringify({ kind: "completion", offset, tx_id: rest.txId, bookmark }));
    if (--left === 0) break;
  }
} catch (error) {
  if (!(error instanceof StreamEnded)) throw error;
  console.log(JSON.stringify({ kind: "ended", code: error.code }));
} finally {
  client.close();
}
