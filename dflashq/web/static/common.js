// What every page shares: elements, numbers in words, the API, the live stream, the banner.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A bar of a share: its width is set on the element, since the page allows no style attribute.
export function bar(share, className = "") {
  const inner = el("i", className ? { class: className } : {});
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, inner);
}

export const byId = (id) => document.getElementById(id);

export function number(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  return Number(value).toLocaleString("en-US", {
    minimumFractionDigits: digits, maximumFractionDigits: digits,
  });
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return `${(value / (unit === "k" ? 1e3 : size)).toFixed(1)} ${unit}`;
  }
  return number(value);
}

export function percent(share, digits = 1) {
  return share === null || share === undefined || Number.isNaN(share)
    ? "–" : `${(share * 100).toFixed(digits)} %`;
}

export function counted(count, noun) {
  const plural = noun.endsWith("ch") ? `${noun}es` : `${noun}s`;
  return `${number(count)} ${count === 1 ? noun : plural}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, Math.round(seconds));
  const two = (big, bigUnit, small, smallUnit) => `${big} ${bigUnit}` + (small ? ` ${small} ${smallUnit}` : "");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return two(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return two(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

export function clock(atMs) {
  const at = new Date(atMs), today = new Date().toDateString() === at.toDateString();
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return today ? time : `${at.toLocaleDateString([], { month: "short", day: "numeric" })} ${time.slice(0, 5)}`;
}

// --- the API

const known = new Map();

export class Refused extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

async function answered(response) {
  let row = {};
  try { row = await response.json(); } catch { /* a proxy's page: the status says enough */ }
  if (response.status === 401) location.assign(`/login?to=${encodeURIComponent(location.pathname)}`);
  if (!response.ok) throw new Refused(row.error || `the monitor answered ${response.status}`, response.status);
  return row;
}

export async function get(path) {
  const before = known.get(path);
  const response = await fetch(`/api${path}`, { headers: before ? { "If-None-Match": before.tag } : {}, cache: "no-store" });
  if (response.status === 304) return before.row;
  const row = await answered(response);
  known.delete(path);
  known.set(path, { tag: response.headers.get("ETag"), row });
  if (known.size > 60) known.delete(known.keys().next().value);
  return row;
}

const meta = document.querySelector("meta[name=csrf]");

export async function post(path, body, again = true) {
  const response = await fetch(`/api${path}`, {
    method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-CSRF-Token": meta.content },
  });
  if (response.status === 403 && again) {
    // The monitor was started anew since this page was loaded: its session is another one.
    meta.content = (await answered(await fetch("/api/session"))).csrf;
    return post(path, body, false);
  }
  return answered(response);
}

// --- how fresh the page is

const banner = byId("banner");
let lastHeard = Date.now(), lost = false, age = null, trouble = "", onBack = () => {};
const LOST_AFTER_MS = 9000, STALE_AFTER_S = 10;

function showBanner() {
  const silent = (Date.now() - lastHeard) / 1000;
  let text = "";
  lost = silent * 1000 > LOST_AFTER_MS;
  const old = age === null ? null : age + silent;
  if (lost) text = `The monitor has not answered for ${span(silent)}. The runs go on without it; this page tries again by itself.`;
  else if (trouble && old !== null) text = `These numbers are ${span(old)} old: ${trouble.replace(/\.$/, "")}. The page goes on by itself.`;
  else if (trouble) text = trouble;
  else if (old !== null && old > STALE_AFTER_S) text = `These numbers are ${span(old)} old: the monitor is slow to read the ledger.`;
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
  banner.classList.toggle("bad", lost);
}

function heard(row) {
  const wasLost = lost;
  lastHeard = Date.now();
  if (row.seen) ({ age_s: age, trouble } = row.seen);
  showBanner();
  if (wasLost) onBack();
}

// Calls `onLook` after every look of the monitor: by server-sent events, or, when it has too many
// readers or none can get through, by asking every few seconds.
export function live(run, onLook, back = () => {}) {
  onBack = back;
  const path = run ? `/runs/${run}` : "/runs";
  let source = null, asking = null;
  const ask = async () => {
    try {
      const row = await get(path);
      // An unchanged answer is an old one: how old it is, only a fresh one tells.
      heard({ seen: row.seen });
      onLook(row);
    } catch (problem) {
      if (problem instanceof Refused) heard({ seen: { age_s: age, trouble: problem.message } });
    }
    if (!source || source.readyState === EventSource.CLOSED) asking = setTimeout(ask, 4000);
  };
  const open = () => {
    source = new EventSource(`/api/stream${run ? `?run=${encodeURIComponent(run)}` : ""}`);
    source.addEventListener("look", (event) => {
      const row = JSON.parse(event.data);
      if (asking) { clearTimeout(asking); asking = null; }
      heard(row);
      if (!row.error) onLook(row);
    });
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return;
      if (!asking) ask();
      setTimeout(open, 15000);
    });
  };
  open();
  setInterval(showBanner, 1000);
  // A phone that slept: say at once how old the page is, and ask.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && Date.now() - lastHeard > LOST_AFTER_MS) { source.close(); open(); }
  });
}

// Fills a part of the page; a failure is told in its place and the rest goes on.
export async function fill(place, path, draw) {
  try {
    draw(await get(path));
  } catch (problem) {
    if (problem instanceof Refused) place.replaceChildren(el("p", { class: "empty" }, problem.message));
    else if (!(problem instanceof TypeError)) throw problem;
  }
}

// --- tables and feeds that several pages have

export function table(label, columns, rows) {
  const head = el("tr", { role: "row" }, ...columns.map((c) =>
    el("th", { scope: "col", role: "columnheader", class: c.n ? "n" : null }, c.name)));
  const body = rows.map((row) => el("tr", { role: "row", class: row.class || null }, ...row.cells.map((cell, i) => {
    const inside = Array.isArray(cell) ? cell : [cell];
    if (i === 0) return el("th", { scope: "row", role: "rowheader" }, ...inside);
    const blank = inside.length === 1 && inside[0] === "–";
    const kind = [columns[i].n ? "n" : "", blank ? "blank" : ""].filter(Boolean).join(" ");
    return el("td", { role: "cell", class: kind || null, "data-name": columns[i].name }, el("span", {}, ...inside));
  })));
  return el("div", { class: "table" },
    el("table", { role: "table", class: "wide", "aria-label": label },
      el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, ...body)));
}

const WORKER_COLUMNS = [
  { name: "worker" }, { name: "GPU" }, { name: "engine" }, { name: "running / limit", n: true },
  { name: "queued", n: true }, { name: "KV use", n: true }, { name: "accept len.", n: true },
  { name: "tokens/s", n: true }, { name: "restarts", n: true }, { name: "batches" }, { name: "last error" },
];

export function workers(place, answer, page) {
  if (!answer.total) {
    place.replaceChildren(el("p", { class: "empty" }, page.empty));
    return;
  }
  const rows = answer.workers.map((w) => ({
    class: w.trouble ? `sick${w.trouble}` : "",
    cells: [
      [w.worker, ...whyOf(w)],
      w.gpu || "–",
      w.alive ? w.engine ?? "–" : `silent for ${span(w.silent_s)}`,
      w.in_flight === null ? "–" : `${number(w.in_flight)} / ${number(w.limit)}`,
      number(w.queued), percent(w.kv_use, 0),
      w.accept_length ? number(w.accept_length, 2) : "–",
      w.alive ? number(w.tokens_per_s) : "–", number(w.restarts),
      w.batches.length ? w.batches.map((b) => el("span", { class: "piece" }, page.run ? b.slice(b.lastIndexOf("/") + 1) : b)) : "–",
      w.last_error || "–",
    ],
  }));
  const parts = [table("Workers", WORKER_COLUMNS, rows)];
  if (answer.total > answer.limit) parts.push(pager(answer, page.go));
  place.replaceChildren(...parts);
}

function whyOf(w) {
  const host = w.host ? [el("small", { class: "quiet" }, w.host)] : [];
  const sick = w.sick ? [el("span", { class: "why" }, `the engine is sick: ${w.sick}`)] : [];
  return [...host, ...sick, ...w.closed.map((why) => el("span", { class: "why" }, `takes no new prompts: ${why}`))];
}

export function pager(answer, go) {
  const last = Math.min(answer.offset + answer.limit, answer.total);
  return el("p", { class: "pager" },
    el("button", { class: "small", disabled: answer.offset === 0, onclick: () => go(Math.max(0, answer.offset - answer.limit)) }, "← before"),
    el("span", {}, `${number(answer.offset + 1)} to ${number(last)} of ${number(answer.total)}`),
    el("button", { class: "small", disabled: last >= answer.total, onclick: () => go(answer.offset + answer.limit) }, "after →"));
}

const GRAVE = new Set(["batch_dead", "run_cancelled", "engine_down", "worker_silent"]);
const WARN = new Set(["run_paused", "batch_returned", "engine_restarted"]);

export function events(place, rows) {
  if (!rows.length) {
    place.replaceChildren(el("li", { class: "empty" }, "Nothing has happened since the monitor began to watch."));
    return;
  }
  place.replaceChildren(...rows.map((row) => el("li", {},
    el("time", { datetime: new Date(row.at).toISOString() }, clock(row.at)),
    el("span", { class: row.who ? "act" : GRAVE.has(row.kind) ? "grave" : WARN.has(row.kind) ? "warn" : null }, row.text))));
}
