"use strict";
// Asks the ledger API what its caller may see, and draws it. Reads only. Texts of the ledger only ever become text.

const PAGE = 20, TX = /^[0-9a-f]{64}$/i, STATE = /^[0-9a-f]{64}:[0-9]{1,10}$/i, OFFSET = /^[0-9]{1,18}$/,
  ATTEMPT = /^[0-9a-f]{64}@[0-9]{1,18}$/i;
const COMPLETIONS = [["offset", "n"], ["time (UTC)"], ["what became of it"], ["transaction"], ["parties"], ["user"], ["conflicts"]];
const by = id => document.getElementById(id);
let keys = [];

class Refused extends Error {}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const utc = text => text ? text.slice(0, 19).replace("T", " ") : "";
const short = id => id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-8).replace(/^[0-9a-f]*:/, ":")}` : id;

function link(query, text) {
  const made = element("a", text ?? short(query), [TX, STATE, ATTEMPT].some(id => id.test(query)) ? "id" : "");
  made.href = "#" + encodeURIComponent(query);
  made.title = query;
  return made;
}

function facts(pairs) {
  const made = element("dl");
  for (const [name, value] of pairs) {
    if (value === null || value === undefined) continue;
    const shown = element("dd");
    shown.append(value);
    made.append(element("dt", name), shown);
  }
  return made;
}

async function ask(path) {
  const headers = by("token").value ? { Authorization: `Bearer ${by("token").value}` } : {};
  const answer = await fetch(path, { headers, signal: AbortSignal.timeout(15_000) });
  const found = await answer.json();
  if (answer.ok) return found;
  if (answer.status === 401) by("access").open = true;
  throw new Refused(`${found.code}: ${found.detail ?? found.title ?? ""} ${found.remedy ?? ""}`.trim());
}

function completionRow(one) {
  const conflicts = element("span");
  for (const conflict of one.conflicts ?? [])
    conflicts.append(link(conflict.state, short(conflict.state)), " ");
  const good = one.code === "NOTARISED" || one.code === "DEDUPLICATED";
  const cells = [[link(String(one.offset), one.offset), "n"], [utc(one.recorded_at)], [one.code, good ? "good" : "bad"],
    [good ? link(one.tx_id) : link(`${one.tx_id}@${one.offset}`, short(one.tx_id))], [one.act_as.join("; ")], [one.user_id],
    [conflicts.hasChildNodes() ? conflicts : ""]];
  const made = element("tr");
  cells.forEach(([value, className], at) => {
    const cell = element("td", undefined, className);
    cell.dataset.name = COMPLETIONS[at][0];
    cell.append(value ?? "");
    made.append(cell);
  });
  return made;
}

// A table of completions whose further pages are asked for one at a time. `path(after)`: the call of a page.
async function pages(title, path, rows, after) {
  const section = element("section"), wide = element("div", undefined, "wide"), table = element("table");
  const head = element("tr"), body = element("tbody"), more = element("button", "More"), note = element("p", "", "note");
  for (const [name, className] of COMPLETIONS) head.append(element("th", name, className));
  table.append(element("thead"), body);
  table.tHead.append(head);
  wide.append(table);
  section.append(element("h2", title), wide, note, more);
  const next = async () => {
    const page = await ask(path(after));
    body.append(...page[rows].map(completionRow));
    after = page.next_after;
    const left = after < page.ledger_end;
    more.hidden = !left;
    note.textContent = (body.rows.length ? "" : "Nothing that this caller may see. ") +
      (page.pruned_to ? `Completions up to offset ${page.pruned_to} are pruned. ` : "") +
      `Read up to offset ${after} of ${page.ledger_end}.`;
  };
  more.onclick = () => guarded(next);
  await next();
  return section;
}

// ---- receipts: the same bytes as docs/formats.md ----

const bytes = hex => Uint8Array.from(hex.match(/../g) ?? [], pair => parseInt(pair, 16));
const uint32 = number => new Uint8Array([number >>> 24, number >>> 16, number >>> 8, number]);
const join = async parts => new Uint8Array(await new Blob(parts).arrayBuffer());
const sha256 = async (...parts) => new Uint8Array(await crypto.subtle.digest("SHA-256", await join(parts)));

// The bytes of a receipt that say where and when; none without a place, null of what has no such bytes.
function placeOf(receipt) {
  if (!receipt.place) return new Uint8Array();
  const { log_id: id, log_offset, epoch, judged_us } = receipt.place, numbers = [log_offset, epoch, judged_us];
  if (!/^[\x21-\x7e]{1,255}$/.test(id) || !numbers.every(one => Number.isSafeInteger(one) && one >= 0)) return null;
  const made = new Uint8Array(26 + id.length), view = new DataView(made.buffer);
  numbers.forEach((one, at) => view.setBigUint64(8 * at, BigInt(one)));
  view.setUint16(24, id.length);
  made.set(new TextEncoder().encode(id), 26);
  return made;
}

async function rootOf(receipt) {
  const place = placeOf(receipt);
  if (place === null) return null;
  let node = await sha256(new Uint8Array([0]), bytes(receipt.tx_id), bytes(receipt.content_digest), place), used = 0;
  let index = receipt.leaf_index, last = receipt.tree_size - 1;
  if (index < 0 || index > last || receipt.path.length > 32) return null;
  for (; last > 0; index = Math.floor(index / 2), last = Math.floor(last / 2)) {
    if (index % 2 === 0 && index >= last) continue;  // no sibling on this level
    if (used >= receipt.path.length) return null;
    const sibling = bytes(receipt.path[used++]), inner = new Uint8Array([1]);
    node = index % 2 ? await sha256(inner, sibling, node) : await sha256(inner, node, sibling);
  }
  return used === receipt.path.length ? node : null;
}

// What is wrong with a receipt; empty if it proves that the transaction was notarised with its content.
async function whyNot(receipt, { tx_id: txId, content_digest: digest, log_offset: offset }) {
  if (receipt.tx_id !== txId || receipt.content_digest !== digest) return "it is about another transaction";
  if (receipt.version !== 2) return "it is of another version";
  if (receipt.place && receipt.place.log_offset !== offset) return "it is about another log offset";
  if (!keys.some(known => known === receipt.notary_key)) return "its key is not one that this notary names";
  const root = await rootOf(receipt);
  if (root === null) return "its path does not fit its tree, or its place is none";
  const raw = bytes(receipt.notary_key), isP256 = raw.length === 65, signature = bytes(receipt.signature);
  const [its, how] = isP256 ? [{ name: "ECDSA", namedCurve: "P-256" }, { name: "ECDSA", hash: "SHA-256" }] : [{ name: "Ed25519" }, { name: "Ed25519" }];
  const key = await crypto.subtle.importKey("raw", raw, its, false, ["verify"]);
  const statement = await join([new TextEncoder().encode("notary/receipt/2"), uint32(receipt.tree_size), root]);
  return await crypto.subtle.verify(how, key, signature, statement) ? "" : "its signature is wrong";
}

const shownPlace = place => !place ? [] : [["log", place.log_id], ["at offset", String(place.log_offset)], ["epoch", String(place.epoch)],
  ["judged", utc(new Date(Math.floor(place.judged_us / 1000)).toISOString()) + " UTC"]];

async function showReceipt(status, place) {
  const receipt = await ask(`/v1/transactions/${status.tx_id}/receipt`);
  let verdict, good = false;
  if (!globalThis.crypto?.subtle) verdict = "not checked: the browser verifies on https and on this machine only";
  else {
    const wrong = await whyNot(receipt, status).catch(error =>
      error.name === "NotSupportedError" ? "this browser does not know the key's algorithm; notary verify checks it" : String(error));
    good = wrong === "";
    verdict = good ? "valid: this browser checked path and signature by the key that the notary names" : "NOT VALID: " + wrong;
  }
  place.replaceChildren(element("h2", "Receipt"), facts([
    ["verification", element("span", verdict, good ? "good" : "bad")],
    ["version", String(receipt.version)], ...shownPlace(receipt.place),
    ["key", element("span", receipt.notary_key, "id")], ["leaf", `${receipt.leaf_index} of ${receipt.tree_size}`], ["signature", element("span", receipt.signature, "id")]]));
}

// ---- what is asked for ----

async function showTransaction(id) {
  const status = await ask(`/v1/transactions/${id}/status`), by_ = status.requested_by;
  const receipt = element("section");
  by("result").replaceChildren(element("h2", "Transaction"), facts([
    ["id", element("span", status.tx_id, "id")], ["content digest", element("span", status.content_digest, "id")],
    ["notarised", status.recorded_at ? utc(status.recorded_at) + " UTC" : null],
    ["log offset", String(status.log_offset)],
    ["ledger offset", status.offset === null ? null : link(String(status.offset), status.offset)],
    ["parties", by_ && by_.act_as.join("; ")], ["user", by_?.user_id], ["command", by_?.command_id], ["submission", by_?.submission_id],
  ]), receipt);
  await showReceipt(status, receipt);
}

async function showState(ref) {
  const state = await ask(`/v1/states/${ref}`);
  const verdict = state.consumed ? element("span", "consumed", "bad") : element("span", "not consumed", "good");
  by("result").replaceChildren(element("h2", "State"), facts([
    ["state", element("span", state.state, "id")], ["now", verdict],
    ["by transaction", state.consumed_by && link(state.consumed_by, state.consumed_by)],
    ["by hash", state.consumed_by ? null : state.consumed_by_hash], ["log offset", state.log_offset === null ? null : String(state.log_offset)],
  ]));
  const title = "Who tried to consume it, oldest first: the winner, and those it beat";
  by("result").append(await pages(title, after => `/v1/states/${ref}/attempts?after=${after}`, "attempts", 0));
}

// A refused attempt is known by its completion alone. It leads to the states that others had consumed.
async function showAttempt(id, offset) {
  const { completions: [one] } = await ask(`/v1/completions?after=${Math.max(0, offset - 1)}&limit=1`);
  if (one?.offset !== offset || one.tx_id !== id)
    throw new Refused(`At ledger offset ${offset} this caller may see no attempt of that transaction.`);
  by("result").replaceChildren(element("h2", "Attempt"), facts([
    ["transaction", element("span", one.tx_id, "id")], ["what became of it", element("span", one.code, one.code === "NOTARISED" ? "good" : "bad")],
    ["recorded", utc(one.recorded_at) + " UTC"], ["ledger offset", link(String(one.offset))],
    ["parties", one.act_as.join("; ")], ["user", one.user_id], ["command", one.command_id], ["submission", one.submission_id],
  ]));
  const chain = element("section");
  for (const conflict of one.conflicts)
    chain.append(facts([["state", link(conflict.state, conflict.state)], ["wanted as", conflict.usage],
      ["consumed by hash", element("span", conflict.consumed_by_hash, "id")]]));
  if (one.conflicts.length) by("result").append(element("h2", "States that were consumed before, and by whom"), chain);
}

async function showCompletions(title, after, more) {
  const path = from => `/v1/completions?after=${from}&limit=${PAGE}${more}`;
  by("result").replaceChildren(await pages(title, path, "completions", after));
}

async function showNewest() {
  const { ledger_end } = await ask("/v1/ledger-end");
  await showCompletions("The newest completions", Math.max(0, ledger_end - PAGE), "");
}

function show(query) {
  if (query === "") return showNewest();
  if (TX.test(query)) return showTransaction(query.toLowerCase());
  if (ATTEMPT.test(query)) return showAttempt(query.slice(0, 64).toLowerCase(), Number(query.slice(65)));
  if (STATE.test(query)) return showState(query.toLowerCase());
  if (OFFSET.test(query)) return showCompletions(`Completions from offset ${query} on`, Math.max(0, Number(query) - 1), "");
  return showCompletions(`Completions of ${query}`, 0, `&party=${encodeURIComponent(query)}`);
}

async function guarded(work) {
  by("problem").textContent = "";
  try { await work(); } catch (error) {
    by("problem").textContent = error instanceof Refused ? error.message : `The notary does not answer: ${error.message}`;
  }
}

async function begin() {
  const notary = await ask("/v1/notary");
  keys = [notary.notary_key, ...notary.keys.map(one => one.public_key)];
  by("notary").textContent = `replica ${notary.replica}, release ${notary.version}`;
  await follow();
}

function follow() {
  const query = decodeURIComponent(location.hash.slice(1));
  by("query").value = query;
  by("result").replaceChildren();
  return show(query);
}

by("search").onsubmit = event => {
  event.preventDefault();
  const query = by("query").value.trim(), hash = "#" + encodeURIComponent(query);
  if (location.hash === hash) guarded(follow); else location.hash = hash;
};
by("newest").onclick = () => { if (location.hash.length > 1) location.hash = ""; else guarded(follow); };
addEventListener("hashchange", () => guarded(follow));
guarded(begin);
