import { bar, byId, counted, el, events, fill, get, live, number, percent, short, span, table, workers } from "./common.js";
import { askTo, buttonsFor } from "./actions.js";
import { Batches } from "./batches.js";
import { Charts } from "./charts.js";
import { stateBar, stateKind, stateWord } from "./progress.js";

const name = document.body.dataset.run;
const batches = new Batches(name), charts = new Charts();
let run = null, over = "hours", drawnButtons = "", drawnVersion = -1, workersFrom = 0, eventsShown = 30, lastSlow = 0;

function drawTop() {
  byId("sentence").textContent = run.sentence;
  const state = byId("state");
  state.textContent = stateWord(run);
  state.className = `badge ${stateKind(run)}`;
  document.title = `${run.total ? Math.floor((100 * run.done) / run.total) : 0} % · ${name} · dflashq`;
  stateBar(run, byId("bar"));
  byId("numbers").replaceChildren(...numbers().map(([label, value, small]) =>
    el("div", {}, el("dt", {}, label), el("dd", {}, value, el("small", {}, small)))));
  const shape = JSON.stringify([run.state, run.ended, run.dead, run.rejected > 0]);
  if (shape !== drawnButtons) {
    drawnButtons = shape;
    byId("actions").replaceChildren(...buttonsFor(run, (act) => askTo(act, run, "", refresh)));
  }
}

function numbers() {
  const ahead = run.forecast, going = run.state === "active" && !run.ended;
  const rows = [
    ["batches", number(run.done), `of ${number(run.total)}` + (run.dead ? `, ${number(run.dead)} dead` : "")],
    ["prompts settled", number(run.settled), `of ${number(run.prompts)}, ${percent(run.prompts ? run.settled / run.prompts : 0)}`],
    ["accepted", number(run.accepted), `${percent(run.settled ? run.rejected / run.settled : null)} rejected`],
    ["tokens on S3", short(run.output_tokens), ahead && ahead.tokens ? `about ${short(ahead.tokens)} to come` : "generated"],
  ];
  if (going) {
    rows.push(["speed", number(run.tokens_per_s), `tokens/s, ${counted(run.working, "worker")}`]);
    rows.push(["time left", ahead ? span(ahead.left_s) : "–", ahead
      ? `between ${span(ahead.low_s)} and ${span(ahead.high_s)}${ahead.early ? ", an early guess" : ""}`
      : "known once a batch is done"]);
  }
  return rows;
}

function drawReasons() {
  const rows = Object.entries(run.rejects);
  const place = byId("reasons");
  if (!rows.length) {
    place.replaceChildren(el("p", { class: "empty" }, run.settled ? `None of ${counted(run.settled, "settled prompt")} is rejected.` : "No prompt is settled yet."));
    return;
  }
  const now = JSON.stringify(rows);
  if (place.dataset.drawn === now) return;
  place.dataset.drawn = now;
  place.replaceChildren(table("Rejected prompts by reason",
    [{ name: "reason" }, { name: "prompts", n: true }, { name: "share", n: true }, { name: "samples" }],
    rows.map(([reason, count]) => ({ cells: [
      reason, number(count), percent(count / run.settled, 2),
      [el("a", { href: `/runs/${name}/samples?verdict=${reason}`, "aria-label": `read samples rejected as ${reason}` }, "read")],
    ] }))));
}

function drawDomains({ counted: row }) {
  const place = byId("domain-list");
  if (!row) { place.replaceChildren(el("p", { class: "empty" }, "The domains are being counted from S3.")); return; }
  const asked = row.domains.reduce((sum, d) => sum + d.prompts, 0) || 1;
  const had = row.domains.reduce((sum, d) => sum + d.accepted, 0);
  const from = row.whole
    ? "Counted over all batches."
    : `Counted over a spread of ${counted(row.prompts_of, "batch")} of prompts (of ${number(row.batches)}) and ${counted(row.samples_of, "done batch")}.`;
  place.replaceChildren(el("p", { class: "quiet" }, from), table("Domains",
    [{ name: "domain" }, { name: "share of prompts", n: true }, { name: "share of samples", n: true }, { name: "rejected", n: true }, { name: "tokens a prompt", n: true }],
    row.domains.map((d) => ({ cells: [
      d.domain, [percent(d.prompts / asked), bar(d.prompts / asked)],
      had ? [percent(d.accepted / had), bar(d.accepted / had)] : "–",
      d.accepted + d.rejected ? percent(d.rejected / (d.accepted + d.rejected)) : "–",
      d.accepted + d.rejected ? number(d.tokens / (d.accepted + d.rejected)) : "–",
    ] }))));
}

function loadWorkers() {
  return fill(byId("worker-list"), `/workers?run=${name}&offset=${workersFrom}&limit=10`, (row) => workers(byId("worker-list"), row, {
    run: name, empty: run && run.ended ? "The run is over: no worker is on it." : "No worker holds a batch of this run now.",
    go: (offset) => { workersFrom = offset; loadWorkers(); },
  }));
}

function loadEvents() {
  return fill(byId("events"), `/runs/${name}/events?limit=${eventsShown}`, (row) => {
    events(byId("events"), row.events);
    byId("more-events").hidden = row.events.length < eventsShown || eventsShown >= 1000;
  });
}

const loadSeries = () => fill(byId("chart-speed"), `/runs/${name}/series?over=${over}`, (row) => charts.draw(row.points));
const loadDomains = () => fill(byId("domain-list"), `/runs/${name}/domains`, drawDomains);

function slow() {
  lastSlow = Date.now();
  loadSeries();
  loadDomains();
}

function onLook(row) {
  run = row.run;
  drawTop();
  drawReasons();
  if (run.batches_version !== drawnVersion) {
    drawnVersion = run.batches_version;
    batches.load().catch(() => { drawnVersion = -1; });
  }
  loadWorkers();
  loadEvents();
  if (Date.now() - lastSlow > 10000) slow();
}

async function refresh() {
  onLook(await get(`/runs/${name}`));
}

for (const choice of ["hours", "days"]) {
  byId(`over-${choice}`).addEventListener("click", () => {
    over = choice;
    for (const other of ["hours", "days"]) byId(`over-${other}`).setAttribute("aria-pressed", String(other === choice));
    loadSeries();
  });
}
byId("more-events").addEventListener("click", () => { eventsShown = Math.min(1000, eventsShown + 100); loadEvents(); });

live(name, onLook, () => { drawnVersion = -1; slow(); });
