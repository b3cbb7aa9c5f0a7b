// What a person may do to a run: buttons, and a dialog that asks before anything happens.

import { byId, counted, el, number, post } from "./common.js";

const WORDS = {
  pause: {
    title: "Pause this run?", go: "Pause", reason: true,
    text: () => "The workers hand its batches back within seconds. What is finished stays kept, and nothing is generated twice.",
  },
  resume: {
    title: "Resume this run?", go: "Resume", accept: true,
    text: (run) => "It goes on where it was." + (run.reason ? ` It was paused: ${run.reason}` : ""),
  },
  cancel: {
    title: "Cancel this run for good?", go: "Cancel the run", grave: true, reason: true, confirm: true,
    text: (run) => `${counted(run.done, "batch")} of ${number(run.total)} are done and stay on S3. The rest is never done, and kept work is dropped. This cannot be undone.`,
  },
  dead: {
    title: "Put the dead batches back to work?", go: "Put them back", verb: "backfill",
    text: (run) => `${counted(run.dead, "dead batch")} get all their attempts back.`,
  },
  rejected: {
    title: "Run rejected prompts again?", go: "Run them again", verb: "backfill", which: true,
    text: () => "They run again as revisions of their batches; what is accepted then takes the place of the rejected row. Every committed batch is read first, so this takes a while; the feed says when it is done.",
  },
};

export function buttonsFor(run, ask) {
  const over = run.state === "cancelled";
  const make = (name, label, kind = "") => el("button", { class: kind || null, type: "button", "data-act": name, onclick: () => ask(name) }, label);
  const list = [];
  if (run.state === "paused") list.push(make("resume", "Resume…", "main"));
  if (run.state === "active" && !run.ended) list.push(make("pause", "Pause…"));
  if (run.dead && !over) list.push(make("dead", `Revive ${counted(run.dead, "dead batch")}…`));
  if (run.rejected && !over) list.push(make("rejected", "Run rejected again…"));
  if (!over && !run.ended) list.push(make("cancel", "Cancel…", "grave"));
  return list;
}

export function askTo(name, run, reason, after) {
  const words = WORDS[name], dialog = byId("act-dialog");
  const problem = el("p", { class: "banner bad", role: "alert", hidden: true });
  const why = words.reason ? el("input", { type: "text", name: "reason", maxlength: 300, autocomplete: "off" }) : null;
  const accept = words.accept ? el("input", { type: "checkbox", name: "accept" }) : null;
  const which = words.which ? chooser(run, reason) : null;
  const typed = words.confirm ? el("input", { type: "text", name: "confirm", autocomplete: "off", autocapitalize: "none", required: true }) : null;
  const go = el("button", { class: words.grave ? "grave" : "main", type: "submit", disabled: words.confirm || null }, words.go);
  if (typed) typed.addEventListener("input", () => { go.disabled = typed.value !== run.name; });
  const form = el("form", { method: "dialog" },
    el("h2", { id: "act-title" }, words.title), el("p", {}, words.text(run)),
    which && el("label", {}, "Which", which),
    why && el("label", {}, "Why (others read it; may stay empty)", why),
    accept && el("label", { class: "check" }, accept, el("span", {}, "Accept it as it is (on record): it will not pause itself for its rejections again, and a canary that is dead is left out")),
    typed && el("label", {}, `Type ${run.name} to go on`, typed),
    problem,
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => dialog.close() }, "Do nothing"), go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    go.textContent = "A moment…";
    try {
      const body = { reason: why?.value || which?.value || "", accept: accept?.checked || false, confirm: typed?.value, what: words.verb ? name : undefined };
      await post(`/runs/${run.name}/${words.verb || name}`, body);
      dialog.close();
      after();
    } catch (failure) {
      problem.textContent = failure instanceof TypeError ? "The monitor does not answer. Nothing was changed as far as is known; try again." : failure.message;
      problem.hidden = false;
      go.disabled = false;
      go.textContent = words.go;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  (why || typed || which || go).focus();
}

function chooser(run, reason) {
  const all = el("option", { value: "" }, `all rejected (${number(run.rejected)})`);
  return el("select", { name: "which" }, all, ...Object.entries(run.rejects).map(([name, count]) =>
    el("option", { value: name, selected: name === reason }, `${name} (${number(count)})`)));
}
