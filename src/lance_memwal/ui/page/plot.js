// A small plot of what was seen, that goes on by itself; arrow keys and the pointer read it.

import { h, moment, s, seconds } from "./dom.js";

const WIDTH = 300, HEIGHT = 84, SHORTEST_MS = 30000, LONGEST_MS = 180000;

/** A plot. `series` are {name, color, of(sample)}; `show` makes a text of a value. */
export class Plot {
  constructor(title, { series, show, note = "", area = series.length === 1 }) {
    this.title = title;
    this.series = series;
    this.show = show;
    this.area = area;
    this.points = [];
    this.span = SHORTEST_MS;
    this.known = [];
    this.at = null;
    this.value = h("span", { class: "plot-value" });
    this.top = h("span", { class: "plot-top", "aria-hidden": "true" });
    this.lines = s("g");
    this.cross = s("line", { class: "cross", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
      s("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }), this.lines, this.cross);
    this.since = h("span");
    this.frame = h("div", {
      class: "plot-frame", tabindex: "0", role: "img", "aria-label": title,
      onpointermove: (event) => this.read(event.offsetX / this.frame.clientWidth),
      onpointerleave: () => this.leave(), onblur: () => this.leave(), onkeydown: (event) => this.key(event),
    }, this.picture, this.top);
    const legend = series.length > 1 ? h("ul", { class: "legend" }) : null;
    this.legend = legend;
    this.element = h("figure", { class: "plot" },
      h("figcaption", {}, h("span", { class: "plot-title" }, title), this.value), this.frame, h("div", { class: "plot-span", "aria-hidden": "true" }, this.since, h("span", {}, "now")), legend,
      note ? h("p", { class: "plot-note" }, note) : null);
  }

  /** Draw these samples, oldest first. */
  update(samples) {
    const last = samples.at(-1)?.time_ms ?? 0;
    this.points = samples.filter((sample) => last - sample.time_ms <= LONGEST_MS);
    this.span = Math.max(SHORTEST_MS, last - (this.points[0]?.time_ms ?? last));
    const most = Math.max(0, ...this.points.flatMap((point) => this.series.map((one) => one.of(point) ?? 0)));
    this.known = this.series.filter((one) => this.points.some((point) => one.of(point) !== null && one.of(point) !== undefined));
    this.legend?.replaceChildren(...this.known.map((one) => h("li", { css: { "--mark": one.color } }, one.name, " ", one.told = h("strong"))));
    this.since.textContent = `${seconds(this.span / 1000)} ago`;
    this.most = most > 0 ? rounded(most) : 1;
    this.last = last;
    this.top.textContent = most > 0 ? this.show(this.most) : "";
    this.lines.replaceChildren(...this.series.flatMap((one) => this.draw(one)));
    if (this.at !== null) return;
    this.tell(this.points.length - 1);
    this.frame.setAttribute("aria-label", this.summary());
  }

  x(point) { return WIDTH - ((this.last - point.time_ms) / this.span) * WIDTH; }

  y(value) { return HEIGHT - 1 - (value / this.most) * (HEIGHT - 4); }

  draw(one) {
    const found = this.points.filter((point) => one.of(point) !== null && one.of(point) !== undefined);
    if (!found.length) return [];
    const path = found.map((point, i) => `${i ? "L" : "M"}${this.x(point).toFixed(2)},${this.y(one.of(point)).toFixed(2)}`).join("");
    const line = s("path", { class: "line", d: path, css: { stroke: one.color } });
    if (!this.area) return [line];
    const below = `${path}L${this.x(found.at(-1)).toFixed(2)},${HEIGHT}L${this.x(found[0]).toFixed(2)},${HEIGHT}Z`;
    return [s("path", { class: "area", d: below, css: { fill: one.color } }), line];
  }

  tell(index) {
    const point = this.points[index];
    if (!point) { this.value.replaceChildren("–"); return; }
    for (const one of this.known) if (one.told) one.told.textContent = this.show(one.of(point));
    this.value.replaceChildren(this.legend ? "" : this.show(this.known[0]?.of(point)), this.at === null ? "" : h("span", { class: "plot-when" }, moment(point.time_ms)));
    if (this.at !== null) {
      for (const name of ["x1", "x2"]) this.cross.setAttribute(name, this.x(point));
      this.cross.setAttribute("visibility", "visible");
    }
  }

  read(part) {
    if (!this.points.length) return;
    const wanted = this.last - (1 - part) * this.span;
    this.at = this.points.reduce((best, point, i) => (Math.abs(point.time_ms - wanted) < Math.abs(this.points[best].time_ms - wanted) ? i : best), 0);
    this.tell(this.at);
  }

  leave() {
    this.at = null;
    this.cross.setAttribute("visibility", "hidden");
    this.tell(this.points.length - 1);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e6, End: 1e6 }[event.key];
    if (!step || !this.points.length) return;
    event.preventDefault();
    this.at = Math.min(this.points.length - 1, Math.max(0, (this.at ?? this.points.length - 1) + step));
    this.tell(this.at);
    const point = this.points[this.at];
    this.frame.setAttribute("aria-label", `${this.title}: ${this.known.map((one) => `${this.legend ? `${one.name} ` : ""}${this.show(one.of(point))}`).join(", ")} at ${moment(point.time_ms)}`);
  }

  summary() {
    const now = this.points.at(-1);
    if (!now) return `${this.title}: nothing was seen yet`;
    const told = this.known.map((one) => `${one.name} ${this.show(one.of(now))}, highest ${this.show(Math.max(...this.points.map((p) => one.of(p) ?? 0)))}`);
    return `${this.title} in the last ${seconds(this.span / 1000)}: ${told.join("; ")}. Arrow keys read single values.`;
  }
}

function rounded(value) {
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * scale).find((step) => step >= value) ?? value;
}
