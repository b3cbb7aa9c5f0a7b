import { Refused, byId, counted, el, get, number } from "./common.js";

const run = document.body.dataset.run, PAGE = 20;
const asked = new URLSearchParams(location.search);
let batch = asked.get("batch") || "", verdict = asked.get("verdict") || "all", offset = Number(asked.get("offset")) || 0;
const choice = byId("verdict");
if (![...choice.options].some((option) => option.value === verdict)) choice.append(el("option", { value: verdict }, `rejected: ${verdict}`));
choice.value = verdict;

function turn(message) {
  const parts = [el("b", {}, message.role)];
  if (message.reasoning_content) {
    parts.push(el("details", { class: "thinking" }, el("summary", {}, `thinking, ${counted(message.reasoning_content.length, "character")}`),
      el("p", { class: "text" }, message.reasoning_content)));
  }
  if (message.content) parts.push(el("p", { class: "text" }, message.content));
  if (message.tool_calls) parts.push(el("p", { class: "facts" }, "tool calls"), el("p", { class: "text" }, message.tool_calls));
  if (!message.content && !message.tool_calls) parts.push(el("p", { class: "empty" }, "(no answer)"));
  return el("div", { class: `turn ${message.role}` }, ...parts);
}

function whole(sample) {
  const u = sample.usage, lengths = (sample.accept_lengths || []).filter((n) => n > 0);
  const facts = [
    `${number(u.prompt_tokens)} tokens in, ${number(u.completion_tokens)} out, ${number(u.reasoning_tokens)} of them thinking`,
    `finish: ${sample.finish_reason || "–"}`, `attempt ${sample.attempt}`,
    lengths.length ? `accept length ${number(lengths.reduce((a, b) => a + b, 0) / lengths.length, 2)}` : null,
    sample.source ? `source ${sample.source}` : null, sample.engine ? `engine ${sample.engine}` : null,
  ];
  return el("div", { class: "turns" },
    sample.reason ? el("p", {}, el("span", { class: "verdict" }, `rejected: ${sample.reason}. `), sample.detail) : null,
    ...sample.messages.map(turn), el("p", { class: "facts" }, facts.filter(Boolean).join(" · ")));
}

function item(head) {
  const rejected = head.verdict === "rejected";
  const facts = [`index ${head.index}`, head.id, head.domain, `${number(head.usage.completion_tokens)} tokens`].filter(Boolean).join(" · ");
  const box = el("details", { class: `sample ${head.verdict}` },
    el("summary", {}, rejected ? el("span", { class: "verdict" }, `${head.reason} `) : null, head.prompt || "(no prompt text)",
      head.answer ? el("span", { class: "preview quiet" }, `→ ${head.answer}`) : null, el("span", { class: "quiet" }, facts)));
  box.addEventListener("toggle", async () => {
    if (!box.open || box.dataset.read) return;
    box.dataset.read = "1";
    const wait = el("p", { class: "empty turns" }, "Loading…");
    box.append(wait);
    try {
      wait.replaceWith(whole((await get(`/runs/${run}/samples/${batch}/${head.index}`)).sample));
    } catch (problem) {
      wait.textContent = problem instanceof Refused ? problem.message : "The monitor does not answer: close this and open it again.";
      delete box.dataset.read;
    }
  });
  return box;
}

function draw(row) {
  batch = row.batch;
  byId("batch-name").textContent = row.batch || "no batch";
  for (const side of ["previous", "next"]) {
    byId(side).disabled = !row[side];
    byId(side).onclick = () => { batch = row[side]; offset = 0; load(); };
  }
  const tally = Object.entries(row.verdicts || {}).map(([name, count]) => `${number(count)} ${name}`).join(", ");
  byId("tally").textContent = tally && `${batch}: ${tally}.`;
  const nothing = row.batch ? `${row.batch} holds no such sample.` : "No batch is done yet: samples are on S3 once their batch is.";
  byId("samples").replaceChildren(...(row.samples.length ? row.samples.map(item) : [el("p", { class: "empty" }, nothing)]));
  byId("earlier").hidden = !(row.offset > 0);
  byId("later").hidden = !(row.offset + PAGE < row.total);
}

async function load() {
  history.replaceState(null, "", `?${new URLSearchParams({ batch, verdict, offset: String(offset) })}`);
  byId("samples").setAttribute("aria-busy", "true");
  byId("tally").textContent = "Reading the batch from S3…";
  try {
    draw(await get(`/runs/${run}/samples?batch=${encodeURIComponent(batch)}&verdict=${encodeURIComponent(verdict)}&offset=${offset}&limit=${PAGE}`));
  } catch (problem) {
    byId("tally").textContent = "";
    byId("samples").replaceChildren(el("p", { class: "banner bad", role: "alert" },
      problem instanceof Refused ? problem.message : "The monitor does not answer.", " "),
      el("button", { type: "button", onclick: load }, "Try again"));
  }
  byId("samples").removeAttribute("aria-busy");
}

choice.addEventListener("change", () => { verdict = choice.value; batch = ""; offset = 0; load(); });
byId("earlier").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); load(); scrollTo(0, 0); });
byId("later").addEventListener("click", () => { offset += PAGE; load(); scrollTo(0, 0); });
load();
