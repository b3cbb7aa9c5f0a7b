// A run's batches as one bar, and its state in a word.

import { el, number } from "./common.js";

const PARTS = [["done", "done"], ["leased", "leased"], ["dead", "dead"], ["pending", "pending"]];

export function stateWord(run) {
  if (run.state !== "active") return run.state;
  return run.ended ? "finished" : run.needs_attention ? "active, but nothing moves" : "active";
}

// How its badge looks: an active run at which nothing moves is no good news.
export function stateKind(run) {
  return run.state === "active" && run.needs_attention ? "stuck" : run.state;
}

export function stateBar(run, place = null) {
  const total = Math.max(1, run.total);
  const parts = PARTS.map(([name, kind]) => {
    const part = el("span", { class: kind });
    part.style.width = `${(run[name] / total) * 100}%`;
    return part;
  });
  const said = PARTS.map(([name]) => `${number(run[name])} ${name}`).join(", ");
  const bar = place || el("div", { class: "bar", role: "img" });
  bar.setAttribute("aria-label", `Batches: ${said} of ${number(run.total)}`);
  bar.title = said;
  bar.replaceChildren(...parts);
  return bar;
}
