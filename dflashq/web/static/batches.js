// The batch grid: a page of five hundred cells, the pages above it, and one batch in a dialog.

import { byId, clock, counted, el, get, number, pager, percent } from "./common.js";

const LEGEND = [["done", "done"], ["leased", "leased (being worked on)"], ["pending", "pending"],
  ["waiting", "waiting for the canary"], ["dead", "dead"]];

export class Batches {
  constructor(run) {
    this.run = run;
    this.offset = 0;
    this.at = 0;
    this.cells = [];
    this.drawn = "";
    this.grid = byId("grid");
    this.grid.addEventListener("keydown", (event) => this.move(event));
    byId("batch-state").addEventListener("change", () => { this.offset = 0; this.at = 0; this.load(); });
  }

  async load() {
    const state = byId("batch-state").value;
    const row = await get(`/runs/${this.run}/batches?limit=500&offset=${this.offset}&state=${state}`);
    if (this.offset && this.offset >= row.total) { this.offset = 0; return this.load(); }
    this.draw(row, state);
    return row;
  }

  draw(row, state) {
    const now = JSON.stringify([row.version, row.offset, state, row.total]);
    if (now === this.drawn) return;
    this.drawn = now;
    byId("legend").replaceChildren(...LEGEND.filter(([name]) => row.states[name]).map(([name, words]) =>
      el("span", {}, el("i", { class: name, "aria-hidden": "true" }), `${number(row.states[name])} ${words}`)),
      ...(row.unborn && !row.states.waiting ? [el("span", { class: "quiet" }, `${number(row.unborn)} held back or still being enqueued`)] : []));
    this.drawSegments(row);
    if (!row.batches.length) {
      this.cells = [];
      this.grid.replaceChildren(el("p", { class: "empty" }, state ? `No batch is ${state}.` : "No batch is in the ledger yet."));
      return;
    }
    const focused = this.grid.contains(document.activeElement);
    this.at = Math.min(this.at, row.batches.length - 1);
    this.cells = row.batches.map((batch, i) => this.cell(batch, i));
    this.grid.replaceChildren(...this.cells);
    if (focused) this.cells[this.at].focus();
  }

  cell(batch, i) {
    const rejected = batch.rejected && batch.prompts ? batch.rejected / batch.prompts : 0;
    const said = [batch.batch, batch.state, batch.worker, batch.state === "leased" ? `${number(batch.kept)} entries kept` : "",
      rejected ? `${percent(rejected, 0)} rejected` : "", batch.reason].filter(Boolean).join(", ");
    return el("button", {
      type: "button", class: `${batch.state}${rejected > 0.1 ? " partly" : ""}`, title: said, "aria-label": said,
      tabindex: i === this.at ? "0" : "-1",
      onclick: () => { this.at = i; this.open(batch.batch); },
    });
  }

  drawSegments(row) {
    if (row.segments.length < 2) { byId("segments").replaceChildren(); return; }
    byId("segments").replaceChildren(...row.segments.map((part) => {
      const whole = !part.pending && !part.waiting && !part.leased && !part.dead;
      const kind = part.dead ? "dead" : part.leased ? "busy" : whole ? "whole" : "";
      const range = `${number(part.offset + 1)} to ${number(Math.min(part.offset + row.limit, row.total))}`;
      return el("button", {
        type: "button", class: kind || null, "aria-pressed": String(part.offset === row.offset),
        title: `${part.first} to ${part.last}`,
        onclick: () => { this.offset = part.offset; this.at = 0; this.drawn = ""; this.load(); },
      }, range + (part.dead ? ` · ${number(part.dead)} dead` : ""));
    }));
  }

  move(event) {
    const across = getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -this.at, End: this.cells.length - 1 - this.at }[event.key];
    if (step === undefined || !this.cells.length) return;
    event.preventDefault();
    this.cells[this.at].tabIndex = -1;
    this.at = Math.max(0, Math.min(this.cells.length - 1, this.at + step));
    this.cells[this.at].tabIndex = 0;
    this.cells[this.at].focus();
  }

  async open(name) {
    const dialog = byId("batch-dialog");
    const close = el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close"));
    dialog.replaceChildren(el("h2", { id: "batch-title" }, name), el("p", { class: "empty" }, "Loading…"), close);
    dialog.showModal();
    try {
      const { batch } = await get(`/runs/${this.run}/batches/${name}`);
      dialog.replaceChildren(...this.detail(batch), close);
      close.firstChild.focus();
    } catch (problem) {
      dialog.replaceChildren(el("h2", { id: "batch-title" }, name),
        el("p", { class: "banner bad" }, problem instanceof TypeError ? "The monitor does not answer." : problem.message), close);
    }
  }

  detail(batch) {
    const done = batch.state === "done";
    const reasons = Object.entries(batch.rejects).filter(([, n]) => n).map(([reason, n]) => `${reason} ${number(n)}`).join(", ");
    const facts = [
      ["state", batch.state], ["attempts", number(batch.attempts)], ["worker", batch.worker], ["why", batch.reason],
      ["kept", batch.state === "leased" ? counted(batch.kept, "finished piece") : ""],
      ["prompts", done ? `${number(batch.prompts)}, ${number(batch.accepted)} accepted` : ""], ["rejected", reasons],
      ["tokens", done ? number(batch.output_tokens) : ""],
    ].filter(([, value]) => value);
    return [
      el("h2", { id: "batch-title" }, batch.batch),
      el("dl", { class: "numbers" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      el("h3", {}, "What happened to it"),
      batch.story.length
        ? el("ol", { class: "story" }, ...batch.story.map((one) => el("li", {}, el("span", { class: "quiet" }, `${clock(one.at)} `), one.what)))
        : el("p", { class: "empty" }, "No attempt on it has failed."),
      done ? el("p", {}, el("a", { href: `/runs/${this.run}/samples?batch=${batch.batch}` }, "Read its samples")) : null,
    ].filter(Boolean);
  }
}
