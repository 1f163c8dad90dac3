// The page of a DLog cluster. It asks for JSON every two seconds and changes what differs.
// Names and payloads come from strangers: they are set with textContent only, never as HTML.

import { drawSpark, drawTimeline } from "/page/charts.js";

const EVERY_MS = 2000;
const SAMPLES = 90;
const get = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const state = { token: null, chosen: null, paused: false, samples: [], states: new Map(), opener: null, streams: [] };

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** One child for each item. A child that stays is changed in place, so it keeps the focus. */
function keyed(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = String(key(item));
    let child = old.get(name);
    old.delete(name);
    if (!child) { child = create(item); child.dataset.key = name; }
    update(child, item);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  for (const child of old.values()) child.remove();
}

const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
const rate = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }));
const clock = (ms) => (ms === null || ms === undefined ? "–" : new Date(ms).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }));

class Refused extends Error {}

async function ask(question, query = {}) {
  const text = new URLSearchParams(query).toString();
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  let reply;
  try {
    reply = await fetch(`/api/page/${question}${text ? `?${text}` : ""}`, { headers, cache: "no-store" });
  } catch (error) {
    throw new Error(`The bookie does not answer: ${error.message}`);
  }
  if (reply.status === 401) throw new Refused();
  const body = await reply.text();
  let document_ = null;
  try { document_ = JSON.parse(body); } catch { /* an error of the guard is plain text */ }
  if (!reply.ok) throw new Error(document_?.error ?? body.slice(0, 300));
  return document_;
}

function showProblem(error) {
  const box = get("problem");
  box.hidden = error === null;
  put(box, error === null ? "" : error.message);
  // What is shown is from before the problem.
  get("main").classList.toggle("old", error !== null);
  if (error !== null && get("main").hidden) put(get("freshness"), "nothing is known yet");
}

function showToken() {
  const isNew = get("token-form").hidden;
  get("token-form").hidden = false;
  get("main").hidden = true;
  put(get("freshness"), "locked");
  if (isNew) get("token").focus();
}

// --- the cluster ---

function showOverview(found) {
  put(get("namespace"), found.namespace);
  const here = found.bookies.filter((each) => each.state === "writable").length;
  put(get("tile-bookies"), found.bookies.length ? `${here} of ${found.bookies.length}` : "none");
  put(get("tile-bookies-note"), "writable");
  get("tile-bookies").parentElement.classList.toggle("bad", here < found.bookies.length);
  put(get("under-replicated"), number.format(found.under_replicated));
  get("tile-short").classList.toggle("bad", found.under_replicated > 0);
  state.samples = [...state.samples, found.under_replicated].slice(-SAMPLES);
  drawSpark(get("short-chart"), state.samples);
  const recovery = found.auto_recovery;
  const word = !recovery.exists ? "none" : !recovery.enabled ? "off" : recovery.auditor ? "on" : "no auditor";
  put(get("tile-recovery"), word);
  put(get("tile-recovery-note"), recovery.auditor ? `auditor ${recovery.auditor}, delay ${recovery.delay_s} s` : "");
  get("tile-recovery").parentElement.classList.toggle("bad", recovery.exists && word !== "on");
  showBalance(found.balance);
  keyed(get("bookies"), found.bookies, (each) => each.bookie, createBookie, updateBookie);
  get("short-panel").hidden = found.under_replicated === 0;
  keyed(get("short-ledgers"), found.under_replicated_ledgers, (each) => each.ledger_id, createShort, (row, each) => {
    put(row.children[1], each.missing.join(", "));
    put(row.children[2], clock(each.since_ms));
  });
  announce(found.bookies);
}

function showBalance(balance) {
  const note = get("balance-note");
  note.hidden = balance === null;
  if (balance === null) return;
  const where = balance.host ? ` on ${balance.host} since ${clock(balance.began_ms)}` : "";
  const done = `${number.format(balance.moves_done)} of ${number.format(balance.moves)} moves, ${gigabytes(balance.bytes_done)} of ${gigabytes(balance.bytes)}`;
  put(note, `A balance runs${where}: ${balance.moves ? done : "it looks at the ledgers"}`);
}

function announce(bookies) {
  const news = bookies.filter((each) => state.states.has(each.bookie) && state.states.get(each.bookie) !== each.state);
  if (news.length) put(get("announcer"), news.map((each) => `bookie ${each.bookie} is ${each.state}`).join("; "));
  state.states = new Map(bookies.map((each) => [each.bookie, each.state]));
}

function createBookie(each) {
  const card = make("li", "bookie");
  const head = make("div", "row between");
  head.append(make("span", "name", each.bookie), make("span", "badge"));
  const meter = make("div", "meter");
  meter.setAttribute("role", "meter");
  meter.setAttribute("aria-valuemin", "0");
  meter.setAttribute("aria-valuemax", "100");
  meter.setAttribute("aria-label", `used disk space of ${each.bookie}`);
  meter.append(make("i"));
  const foot = make("div", "row between");
  foot.append(make("span", "quiet"), explainButton("bookie", each.bookie));
  card.append(head, meter, make("p", "quiet"), foot);
  return card;
}

function updateBookie(card, each) {
  const [head, meter, space, foot] = card.children;
  const isBad = each.state === "away" || each.state === "silent";
  card.className = `bookie ${each.state}`;
  head.children[1].className = `badge ${isBad ? "bad" : each.state === "writable" ? "good" : "warn"}`;
  put(head.children[1], each.state);
  const used = each.total_bytes ? 100 * (1 - each.free_bytes / each.total_bytes) : 0;
  meter.firstChild.style.setProperty("width", `${used.toFixed(1)}%`);
  meter.classList.toggle("full", used > 95);
  meter.setAttribute("aria-valuenow", used.toFixed(0));
  put(space, each.total_bytes ? `${gigabytes(each.free_bytes)} free of ${gigabytes(each.total_bytes)}` : each.silence ?? "disk space not known");
  const missing = each.missing_ledgers ? `, ${each.missing_ledgers} ledgers miss it` : "";
  const rack = each.rack ? `, rack ${each.rack}` : "";
  put(foot.children[0], `${rate(each.entries_per_s)} entries/s${rack}${missing}`);
}

function createShort(each) {
  const row = make("tr");
  row.append(make("td", "", String(each.ledger_id)), make("td"), make("td"));
  const cell = make("td", "number");
  cell.append(explainButton("ledger", String(each.ledger_id)));
  row.append(cell);
  return row;
}

function explainButton(kind, name) {
  const button = make("button", "link", "Explain");
  button.type = "button";
  button.setAttribute("aria-label", `Explain ${kind} ${name}`);
  button.addEventListener("click", () => explain(kind, name));
  return button;
}

// --- the streams ---

function showStreams() {
  const wanted = get("filter").value.toLowerCase();
  const shown = state.streams.filter((each) => each.name.toLowerCase().includes(wanted));
  keyed(get("streams"), shown, (each) => each.name, createStream, (row, each) => {
    row.classList.toggle("chosen", each.name === state.chosen);
    const [, records, perSecond, segments, cursors, writer] = row.children;
    put(records, each.error ? "–" : number.format(each.records));
    put(perSecond, rate(each.records_per_s));
    put(segments, each.error ? "–" : number.format(each.segments));
    put(cursors, each.error ? "–" : number.format(each.cursors));
    put(writer, each.error ?? (each.is_sealed ? "sealed" : writerText(each)));
  });
}

function createStream(each) {
  const row = make("tr");
  const cell = make("td");
  const button = make("button", "link", each.name);
  button.type = "button";
  button.addEventListener("click", () => choose(each.name));
  button.addEventListener("keydown", moveBetweenStreams);
  cell.append(button);
  row.append(cell, ...["number", "number", "number", "number", ""].map((name) => make("td", name)));
  return row;
}

function moveBetweenStreams(pressed) {
  const rows = [...get("streams").querySelectorAll("button")];
  const step = { ArrowDown: 1, ArrowUp: -1 }[pressed.key];
  const target = { Home: 0, End: rows.length - 1 }[pressed.key] ?? (step && rows.indexOf(pressed.target) + step);
  if (target === undefined || !rows[target]) return;
  pressed.preventDefault();
  rows[target].focus();
}

async function choose(name) {
  state.chosen = name;
  get("records").replaceChildren();
  put(get("records-note"), "");
  get("records-next").hidden = true;
  get("from").value = "earliest";
  showStreams();
  get("stream").hidden = false;
  put(get("stream-title"), name);
  get("stream-title").focus();
  await refreshStream().catch(showProblem);
}

function closeStream() {
  const name = state.chosen;
  state.chosen = null;
  get("stream").hidden = true;
  showStreams();
  const row = [...get("streams").children].find((each) => each.dataset.key === name);
  row?.querySelector("button").focus();
}

// Who writes a log, and how many programs forward to it if it is shared.
function writerText(log) {
  if (!log.writer) return "none";
  return log.forwarders === null ? log.writer : `${log.writer}, ${number.format(log.forwarders)} forward to it`;
}

async function refreshStream() {
  const name = state.chosen;
  const found = await ask("stream", { name });
  if (state.chosen !== name) return;
  put(get("stream-note"), `${number.format(found.records)} records from ${found.first ?? "–"} to ${found.last ?? "–"}; ` +
    (found.is_sealed ? "sealed" : `writer: ${writerText(found)}`));
  drawTimeline(get("timeline"), found.segments, found.at_ms, clock);
  keyed(get("segments"), [...found.segments].reverse(), (each) => each.segment_seqno, (each) => {
    const row = make("tr");
    row.append(make("td", "number", String(each.segment_seqno)), make("td"), make("td", "number"), make("td"), make("td"), make("td"));
    const button = explainButton("ledger", String(each.ledger_id));
    button.textContent = String(each.ledger_id);
    row.children[1].append(button);
    return row;
  }, (row, each) => {
    put(row.children[2], number.format(each.records ?? 0));
    put(row.children[3], clock(each.began_ms));
    put(row.children[4], clock(each.completed_ms));
    const where = each.bookies === each.bookies_asked ? "" : `, on ${each.bookies} of ${each.bookies_asked} bookies`;
    const stage = each.is_completed ? "completed" : "in progress";
    put(row.children[5], (each.truncation === "active" ? stage : each.truncation.replace("_", " ")) + where);
  });
  put(get("cursors-note"), found.cursors.length ? "" : "No reader has committed a position.");
  get("cursors-table").hidden = found.cursors.length === 0;
  keyed(get("cursors"), found.cursors, (each) => each.name, (each) => {
    const row = make("tr");
    const box = make("td", "meterbox");
    const meter = make("div", "meter");
    meter.append(make("i"));
    box.append(meter);
    row.append(make("td", "", each.name), make("td", "position"), make("td", "number"), box);
    return row;
  }, (row, each) => {
    put(row.children[1], each.position);
    put(row.children[2], number.format(each.lag));
    // Full: the cursor is behind by all visible records.
    const behind = 100 * Math.min(1, each.lag / Math.max(1, found.records));
    row.querySelector("i").style.setProperty("width", `${behind.toFixed(1)}%`);
  });
}

async function readRecords(from) {
  const name = state.chosen;
  put(get("records-note"), "reading");
  try {
    const found = await ask("records", { name, from });
    if (state.chosen !== name) return;
    get("records").replaceChildren(...found.records.map(recordItem));
    put(get("records-note"), found.records.length ? `${found.records.length} records` : "There is no record from here on.");
    get("records-next").hidden = found.next === null;
    get("records-next").dataset.from = found.next ?? "";
  } catch (error) {
    if (error instanceof Refused) { showToken(); return; }
    get("records").replaceChildren();
    put(get("records-note"), error.message);
  }
}

function recordItem(each) {
  const item = make("li");
  const head = make("div", "row between quiet");
  const cut = each.is_cut ? ", the rest is not shown" : "";
  head.append(make("span", "position", each.dlsn), make("span", "", `transaction ${each.txid}, ${number.format(each.size_bytes)} bytes${cut}`));
  item.append(head, make("pre", "", each.text ?? each.hex));
  return item;
}

// --- reasons ---

async function explain(kind, name) {
  state.opener = document.activeElement;
  put(get("reasons-title"), `Why? ${kind} ${name}`);
  put(get("reasons-verdict"), "asking");
  get("reasons-list").replaceChildren();
  if (!get("reasons").open) get("reasons").showModal();
  try {
    const found = await ask("explain", { kind, name });
    put(get("reasons-verdict"), found.is_sound ? "All is as it should be." : "Something is wrong.");
    get("reasons-list").replaceChildren(...found.reasons.map((each) => {
      const item = make("li", each.is_fault ? "fault" : "");
      const next = make("p", "quiet", "next: ");
      next.append(make("code", "", each.next_command));
      item.append(make("strong", "", each.what), make("p", "quiet", each.evidence), next);
      return item;
    }));
  } catch (error) {
    put(get("reasons-verdict"), error instanceof Refused ? "The token is missing or wrong." : error.message);
  }
}

// --- the loop ---

async function refresh() {
  const [found, streams] = await Promise.all([ask("overview"), ask("streams")]);
  get("token-form").hidden = true;
  get("main").hidden = false;
  showOverview(found);
  state.streams = streams.streams;
  put(get("tile-streams"), number.format(streams.streams.length + streams.left_out));
  const total = streams.streams.reduce((sum, each) => sum + (each.records_per_s ?? 0), 0);
  put(get("tile-streams-note"), `${rate(total)} records/s`);
  put(get("streams-note"), streams.left_out ? `${number.format(streams.left_out)} more streams are not shown` : "");
  showStreams();
  if (state.chosen !== null) await refreshStream();
  put(get("freshness"), `as of ${new Date(found.at_ms).toLocaleTimeString()}`);
}

async function loop() {
  if (!state.paused && !document.hidden) {
    try {
      await refresh();
      showProblem(null);
    } catch (error) {
      if (error instanceof Refused) showToken();
      else showProblem(error);
    }
  }
  setTimeout(loop, EVERY_MS);
}

function pause() {
  state.paused = !state.paused;
  get("pause").setAttribute("aria-pressed", String(state.paused));
}

function onKey(pressed) {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey || get("reasons").open) return;
  if (pressed.key === "Escape" && state.chosen !== null) closeStream();
  if (pressed.target instanceof HTMLInputElement) return;
  if (pressed.key === "/") { pressed.preventDefault(); get("filter").focus(); }
  if (pressed.key === "p") pause();
}

function begin() {
  // The part behind # is not sent to a server. It leaves the address at once, so that it is not copied along.
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("dlog-token", given);
    history.replaceState(null, "", location.pathname);
  }
  state.token = sessionStorage.getItem("dlog-token");
  get("pause").addEventListener("click", pause);
  get("filter").addEventListener("input", showStreams);
  get("stream-close").addEventListener("click", closeStream);
  get("stream-explain").addEventListener("click", () => explain("log", state.chosen));
  get("records-form").addEventListener("submit", (event) => { event.preventDefault(); readRecords(get("from").value.trim()); });
  get("records-next").addEventListener("click", () => readRecords(get("records-next").dataset.from));
  get("reasons-close").addEventListener("click", () => get("reasons").close());
  get("reasons").addEventListener("close", () => state.opener?.focus());
  get("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    state.token = get("token").value.trim();
    sessionStorage.setItem("dlog-token", state.token);
    refresh().then(() => showProblem(null)).catch((error) => { if (error instanceof Refused) showProblem(new Error("the token is wrong")); else showProblem(error); });
  });
  document.addEventListener("keydown", onKey);
  loop();
}

begin();
