import { byId, counted, el, live, number, percent, short, span } from "./common.js";
import { stateBar, stateKind, stateWord } from "./progress.js";

function card(run) {
  const speed = run.state === "active" && !run.ended ? `${number(run.tokens_per_s)} tokens/s` : null;
  const left = run.forecast && !run.ended
    ? `${span(run.forecast.low_s)} to ${span(run.forecast.high_s)} left` : null;
  const facts = [
    `${number(run.settled)} of ${number(run.prompts)} prompts settled`,
    `${percent(run.settled ? run.rejected / run.settled : null)} rejected`,
    `${short(run.output_tokens)} tokens`, speed, left, `enqueued ${span(run.age_s)} ago`,
  ];
  return el("article", { class: "card run" },
    el("div", { class: "title" }, el("h2", {}, el("a", { href: `/runs/${run.name}` }, run.name)),
      el("span", { class: `badge ${stateKind(run)}` }, stateWord(run))),
    el("p", {}, run.sentence), stateBar(run),
    el("p", { class: "facts" }, facts.filter(Boolean).join(" · ")));
}

let drawn = "";

live("", (row) => {
  const w = row.workers;
  byId("fleet").textContent = w.known
    ? `${number(w.alive)} of ${counted(w.known, "worker")} alive, ${number(w.tokens_per_s)} tokens/s`
      + (w.silent ? `, ${number(w.silent)} silent` : "") + (w.sick ? `, ${number(w.sick)} sick` : "") + (w.not_ready ? `, ${number(w.not_ready)} without a ready engine` : "")
    : "No worker is up. Start one with celery -A workers worker.";
  const now = JSON.stringify(row.runs.map((run) => ({ ...run, age_s: Math.round(run.age_s / 60) })));
  if (now === drawn) return;
  drawn = now;
  // Whoever walks the runs by keyboard stays where they are.
  const at = document.activeElement?.getAttribute("href");
  byId("runs").replaceChildren(...(row.runs.length ? row.runs.map(card) : [
    el("p", { class: "empty" }, "No run yet. Begin one with ", el("code", {}, "dflashq enqueue FILE --run NAME"), "."),
  ]));
  if (at) byId("runs").querySelector(`a[href="${CSS.escape(at)}"]`)?.focus();
});
