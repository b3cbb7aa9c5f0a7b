// The charts of a run: uPlot, with the page's colours, in the width that there is.

import { byId, el, short } from "./common.js";

/* global uPlot */
const LINES = ["--busy", "--bad", "--good", "--warn", "--wait", "--soft"];
const HEIGHT = 190;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

class Chart {
  constructor(id) {
    this.place = byId(id);
    this.plot = null;
    this.shape = "";
    new ResizeObserver(() => this.fit()).observe(this.place);
  }

  fit() {
    const width = this.place.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  // `lines`: [{name, values}]; `xs` in seconds.
  draw(xs, lines, empty) {
    if (xs.length < 2 || !lines.length) {
      this.clear();
      this.place.replaceChildren(el("p", { class: "empty" }, empty));
      return;
    }
    const columns = [xs, ...lines.map((line) => line.values)];
    const shape = lines.map((line) => line.name).join("|") + colour("--ink");
    if (this.plot && this.shape === shape) {
      this.plot.setData(columns);
      this.tellNewest(xs.length - 1);
      return;
    }
    this.clear();
    this.shape = shape;
    this.place.replaceChildren();
    this.plot = new uPlot(this.options(lines), columns, this.place);
    this.fit();
    this.tellNewest(xs.length - 1);
  }

  // Under the pointer the legend tells that moment; otherwise the newest numbers.
  tellNewest(at) {
    // uPlot clears the legend once it has drawn, which it does behind this turn of the loop.
    setTimeout(() => {
      if (this.plot && !(this.plot.cursor.left >= 0)) this.plot.setLegend({ idx: at }, false);
    });
  }

  clear() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  options(lines) {
    const ink = colour("--soft"), line = colour("--line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    return {
      width: this.place.clientWidth || 300, height: HEIGHT,
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, space: 70, values: timeLabels },
        { ...axis, size: 58, values: (_plot, ticks) => ticks.map((tick) => short(tick)) }],
      series: [{ label: "time", value: (_plot, at) => (at ? new Date(at * 1000).toLocaleString([], { hour12: false }) : "–") },
        ...lines.map((one, i) => ({
          label: one.name, stroke: colour(LINES[i % LINES.length]), width: 2, points: { show: false },
          dash: i >= 3 ? [6, 4] : undefined,
          value: (_plot, value) => short(value),
        }))],
    };
  }
}

function timeLabels(_plot, ticks, _axis, _space, step) {
  const twoDigits = (n) => String(n).padStart(2, "0");
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    if (step >= 86400) return at.toLocaleDateString([], { month: "short", day: "numeric" });
    const time = `${twoDigits(at.getHours())}:${twoDigits(at.getMinutes())}`;
    return step < 60 ? `${time}:${twoDigits(at.getSeconds())}` : time;
  });
}

export class Charts {
  constructor() {
    this.speed = new Chart("chart-speed");
    this.settled = new Chart("chart-settled");
    this.rejects = new Chart("chart-rejects");
    this.points = [];
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(this.points));
  }

  draw(points) {
    this.points = points;
    const xs = points.map((p) => p.at / 1000);
    const wait = "A line appears here once there are two points, in about 20 seconds.";
    this.speed.draw(xs, [{ name: "tokens/s", values: points.map((p) => p.tokens_per_s) }], wait);
    this.settled.draw(xs, [
      { name: "settled", values: points.map((p) => p.settled) },
      { name: "rejected", values: points.map((p) => p.settled - p.accepted) },
    ], wait);
    const last = points.length ? points[points.length - 1].rejects : {};
    const reasons = Object.entries(last).sort((a, b) => b[1] - a[1]).slice(0, 6).map(([reason]) => reason);
    this.rejects.draw(xs, reasons.map((reason) => ({ name: reason, values: points.map((p) => p.rejects[reason] || 0) })),
      points.length > 1 ? "Nothing is rejected." : wait);
  }
}
