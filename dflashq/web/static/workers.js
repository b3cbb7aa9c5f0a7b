import { byId, counted, events, fill, live, number, workers } from "./common.js";

let from = 0;

function load() {
  return fill(byId("worker-list"), `/workers?offset=${from}`, (row) => workers(byId("worker-list"), row, {
    run: "", empty: "No worker is up. Start one with celery -A workers worker.",
    go: (offset) => { from = offset; load(); },
  }));
}

live("", (row) => {
  const w = row.workers;
  byId("fleet").textContent = w.known
    ? `${counted(w.known, "worker")}: ${number(w.alive)} alive, ${number(w.silent)} silent, ${number(w.sick)} sick, ${number(w.not_ready)} without a ready engine; ${number(w.tokens_per_s)} tokens/s together`
    : "";
  load();
  fill(byId("events"), "/events?limit=50", (answer) => events(byId("events"), answer.events));
});
