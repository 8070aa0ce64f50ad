"use strict";
// Draws what /page/data says, once a second. Texts from the replica only ever become text, never markup.

const KEPT_MS = 600_000, SHOWN_MIN_MS = 60_000, EVERY_MS = 1_000, ANSWER_MAX_MS = 5_000;
const WIDE = 320, HIGH = 110, TOP = 8, BOTTOM = 14;
const rate = v => v.toFixed(v < 10 ? 1 : 0) + "/s";
const seconds = v => v < 1 ? (1000 * v).toFixed(v < 0.01 ? 1 : 0) + " ms" : v.toFixed(1) + " s";
const count = v => String(Math.round(v));
const CHARTS = [
  { title: "Throughput: notarised, refused", keys: ["notarised", "refused"], show: rate },
  { title: "Latency: median, 99th percentile", keys: ["p50_s", "p99_s"], show: seconds },
  { title: "Conflicts", keys: ["conflicts"], show: rate },
  { title: "Estimate for clients", keys: ["estimate_s"], show: seconds },
  { title: "Submissions in flight", keys: ["in_flight"], show: count },
  { title: "Lag: records not applied here", keys: ["lag_records"], show: count },
];
let samples = [];

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function row(cells) {
  const made = element("tr");
  for (const [text, className] of cells) made.append(element("td", text ?? "", className));
  return made;
}

// The rows of a table. A narrow page shows no heads: there each cell is drawn with its name.
function fill(id, rows) {
  const body = document.getElementById(id), heads = body.parentElement.tHead.rows[0].cells;
  for (const made of rows) [...made.cells].forEach((cell, at) => { cell.dataset.name = heads[at].textContent; });
  body.replaceChildren(...rows);
}

function utc(text) {
  return text ? text.slice(0, 19).replace("T", " ") : "";
}

function roleOf(health) {
  if (!health) return ["does not answer", "bad"];
  if (health.serving === "all") {
    const lock = health.role === "active" ? ", holds the lock" : "";
    return health.active ? ["SERVES" + lock, "good"] : [`does not serve${lock}: ${health.not_serving_detail || "no reason given"}`, "warn"];
  }
  if (health.active) return ["ACTIVE", "good"];
  if (health.role !== "passive") return [String(health.role).replace("_", " "), "warn"];
  return health.ready ? ["passive, ready", ""] : ["passive, not ready", "warn"];
}

function scrubbed(scrub) {
  if (!scrub || !scrub.of_records) return "";
  const share = Math.floor(100 * scrub.records / scrub.of_records) + " %";
  return scrub.age_s > scrub.within_s ? share + ", LATE" : share;
}

// Who holds the lock: where one replica serves, that is the one that is active.
function leads(health) {
  return health.serving === "all" ? health.role === "active" : health.active;
}

const LAG_MAX = 50_000;  // as the alert NotaryReplicaLags

// What an operator must know at once; the alerts of Prometheus watch the same, and more.
function alarmsOf(data) {
  const alarms = [], healths = data.replicas.filter(({ health }) => health);
  const active = healths.filter(({ health }) => leads(health)), all = healths.some(({ health }) => health.serving === "all");
  if (!healths.some(({ health }) => health.active)) alarms.push("No replica serves: every request is refused");
  else if (!active.length) alarms.push("No replica holds the lock: requests are answered, and completions wait");
  if (all) for (const { name, health } of healths.filter(({ health }) => !health.active)) alarms.push(`${name} does not serve: ${health.not_serving_detail || "no reason given"}`);
  if (active.length > 1) alarms.push(`More than one replica reports that it leads: ${active.map(one => one.name).join(", ")}`);
  const names = data.replicas.map(({ name }) => name), owner = lockOwner(data);
  if (owner && !names.includes(owner)) alarms.push(`The lock is held by ${owner}, which is no replica`);
  if (active.length && !healths.some(({ health }) => health.ready && !leads(health))) alarms.push("No other replica could take over");
  if (healths.some(({ health }) => health.failover_paused)) alarms.push("Fail-over is paused");
  if (healths.some(({ health }) => health.service_paused)) alarms.push("Service is paused");
  for (const { name, health } of data.replicas) {
    if (!health) { alarms.push(`${name} does not answer`); continue; }
    if (!health.reaches_log) alarms.push(`${name} does not reach the log`);
    if (health.lag_records > LAG_MAX) alarms.push(`${name} lags by ${health.lag_records} records`);
    if (health.log_hazards?.length) alarms.push(`The log is not safe: ${health.log_hazards.join("; ")}`);
    if (health.scrub?.age_s > health.scrub?.within_s) alarms.push(`${name} has not compared its index with the log in time`);
  }
  if (data.epochs_problem) alarms.push("The database does not answer");
  return [...new Set(alarms)];
}

function lockOwner(data) {
  return data.replicas.map(({ health }) => health?.lock_owner).find(owner => owner) ?? null;
}

function drawWhere(data) {
  const where = document.getElementById("where"), explorer = element("a", "ledger explorer");
  explorer.href = data.endpoint + "/v1/explorer";
  where.replaceChildren(`lock: ${lockOwner(data) ?? "nobody"} · endpoint: ${data.endpoint} · `, explorer);
  document.getElementById("alarms").replaceChildren(...alarmsOf(data).map(text => element("li", text)));
}

const timeOf = value => value === null || value === undefined ? "" : seconds(value);

function drawReplicas(replicas) {
  fill("replicas", replicas.map(({ name, health, p50_s, p99_s }) => {
    const h = health ?? {};
    return row([[name], roleOf(health), [h.epoch, "n"], [h.applied_offset, "n"], [h.lag_records, "n"],
      [h.in_flight, "n"], [timeOf(p50_s), "n"], [timeOf(p99_s), "n"], [timeOf(h.lock_answer_age_s), "n"], [health ? (h.reaches_log ? "reached" : "NOT reached") : ""], [scrubbed(h.scrub), "n"], [h.version]]);
  }));
}

function drawEpochs(data) {
  document.getElementById("epochs-problem").textContent =
    data.epochs_problem ? "The database does not answer: " + data.epochs_problem : "";
  fill("epochs", data.epochs.map(e =>
    row([[e.epoch, "n"], [e.replica], [utc(e.since)], [utc(e.until)], [e.why]])));
}

function line(key, className, x, y) {
  let path = "", pen = "M";
  for (const sample of samples) {
    const value = sample[key];
    if (value === null) { pen = "M"; continue; }
    path += pen + x(sample.t_ms).toFixed(1) + " " + y(value).toFixed(1);
    pen = "L";
  }
  return shape("path", { d: path, class: className });
}

function draw({ title, keys, show }) {
  const newest = samples.at(-1), last = newest.t_ms;
  const span = Math.max(SHOWN_MIN_MS, last - samples[0].t_ms);
  const top = Math.max(1e-3, ...samples.flatMap(s => keys.map(key => s[key] ?? 0)));
  const x = t => WIDE - (last - t) / span * WIDE;
  const y = v => HIGH - BOTTOM - v / top * (HIGH - BOTTOM - TOP);
  const now = keys.map(key => newest[key] === null ? "–" : show(newest[key])).join(", ");
  const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img" });
  svg.setAttribute("aria-label", `${title}: now ${now}, at most ${show(top)}`);
  svg.append(shape("line", { x1: 0, x2: WIDE, y1: y(0), y2: y(0), class: "grid" }));
  svg.append(shape("line", { x1: 0, x2: WIDE, y1: y(top), y2: y(top), class: "grid" }));
  samples.forEach((s, at) => {  // where the epoch changed
    if (at && s.epoch !== samples[at - 1].epoch)
      svg.append(shape("line", { x1: x(s.t_ms), x2: x(s.t_ms), y1: TOP, y2: y(0), class: "turn" }));
  });
  keys.forEach((key, at) => svg.append(line(key, at ? "two" : "one", x, y)));
  const label = (text, at, where) => {
    const made = shape("text", { x: at, y: where });
    made.textContent = text;
    return made;
  };
  svg.append(label(show(top), 2, TOP + 8), label(`${Math.round(span / 60_000)} min ago`, 2, HIGH - 3), label("now", WIDE - 20, HIGH - 3));
  const figure = element("figure"), caption = element("figcaption");
  caption.append(element("span", title), element("span", now));
  figure.append(caption, svg);
  return figure;
}

async function refresh() {
  const after = samples.length ? samples.at(-1).t_ms : 0;
  const state = document.getElementById("state");
  try {
    const answer = await fetch("/page/data?after=" + after, { signal: AbortSignal.timeout(ANSWER_MAX_MS) });
    const data = await answer.json();
    samples = samples.concat(data.samples);
    if (samples.length) samples = samples.filter(s => s.t_ms > samples.at(-1).t_ms - KEPT_MS);
    document.title = `${data.cluster}: replica ${data.replica}`;
    document.getElementById("title").textContent = `Notary ${data.cluster}, replica ${data.replica}`;
    const names = wanted => data.replicas.filter(({ health }) => health && wanted(health)).map(({ name }) => name);
    const active = names(leads), serving = names(health => health.active), all = data.replicas.some(({ health }) => health?.serving === "all");
    state.textContent = active.length ? `active: ${active.join(" AND ")}` : "nobody is active";
    if (all) state.textContent = `${serving.length ? "serving: " + serving.join(", ") : "nobody serves"}; lock: ${active.join(" AND ") || "nobody"}`;
    state.className = active.length === 1 && serving.length ? "good" : "bad";
    drawWhere(data);
    drawReplicas(data.replicas);
    drawEpochs(data);
    if (samples.length) document.getElementById("charts").replaceChildren(...CHARTS.map(draw));
  } catch (error) {
    state.textContent = `this replica has not answered since ${utc(new Date(after || Date.now()).toISOString())} UTC`;
    state.className = "bad";
  }
  setTimeout(refresh, EVERY_MS);
}

refresh();
