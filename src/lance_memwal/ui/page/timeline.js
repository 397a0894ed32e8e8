// What happened: takeovers, flushes, trims and compactions, by shard and time, as a picture and as a list.

import { get } from "./api.js";
import { ago, count, h, moment, plural, problem, s, shardName, table } from "./dom.js";

const KINDS = { takeover: "Takeover", flush: "Flush", compaction: "Compaction", trim: "Trim", base: "Base version", seal: "Seal" };
const LANE = 34, LEFT = 92, WIDTH = 1120, TOP = 8;

export class Timeline {
  constructor() {
    this.shown = new Set(Object.keys(KINDS));
    this.picture = h("div", { class: "timeline" });
    this.list = h("div");
    this.note = h("p", { class: "small" });
    const boxes = h("fieldset", { class: "filters" }, h("legend", { class: "unseen" }, "Kinds of events"), Object.entries(KINDS).map(([kind, name]) =>
      h("label", {}, h("input", { type: "checkbox", checked: true, onchange: (event) => { event.target.checked ? this.shown.add(kind) : this.shown.delete(kind); this.draw(); } }), h("span", { class: "event-mark", "data-kind": kind }), name)));
    this.element = h("div", {},
      h("div", { class: "heading" }, h("h2", {}, "Timeline"), boxes, h("button", { type: "button", onclick: () => this.open() }, "Read again")),
      this.note, this.picture, this.list);
  }

  async open() {
    this.found = await get("/api/timeline").catch((error) => { this.picture.replaceChildren(problem(error)); });
    this.draw();
  }

  draw() {
    if (!this.found) return;
    const events = this.found.events.filter((event) => this.shown.has(event.kind));
    const left = [this.found.left_out ? `${plural(this.found.left_out, "older version")} not read` : "", this.found.shards_in_all > this.found.shards.length ? `the first ${count(this.found.shards.length)} of ${count(this.found.shards_in_all)} shards` : ""].filter(Boolean);
    this.note.textContent = ["What was collected is not shown", ...left].join(" · ");
    this.picture.replaceChildren(events.length ? drawing(events, this.found.shards) : h("p", { class: "empty" }, "Nothing to show."));
    const columns = [
      { name: "Time", head: true, cell: (e) => h("time", { title: new Date(e.time_ms).toISOString() }, moment(e.time_ms)) }, { name: "", cell: (e) => h("span", { class: "small" }, ago(e.time_ms)) },
      { name: "What", cell: (e) => h("span", { class: "event-kind" }, h("span", { class: "event-mark", "data-kind": e.kind }), KINDS[e.kind]) },
      { name: "Shard", cell: (e) => (e.shard_id ? shardName(e.shard_id) : "base") }, { name: "", cell: (e) => e.text, className: "wrap" },
      { name: "Rows", number: true, cell: (e) => (e.rows === null ? "" : count(e.rows)) },
    ];
    this.list.replaceChildren(events.length ? table("Events, the newest first", columns, [...events].reverse().slice(0, 500), { hideCaption: true, tall: true }) : "");
  }
}

function drawing(events, shards) {
  const from = events[0].time_ms, to = Math.max(events.at(-1).time_ms, from + 1000);
  const lanes = [...shards, null], height = TOP + lanes.length * LANE + 26;
  const x = (ms) => LEFT + 14 + ((ms - from) / (to - from)) * (WIDTH - LEFT - 28);
  const y = (shard) => TOP + lanes.indexOf(shard) * LANE + LANE / 2;
  const steps = [0, 0.25, 0.5, 0.75, 1].map((part) => from + part * (to - from));
  return s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `Timeline from ${moment(from)} to ${moment(to)}: ${plural(events.length, "event")}; the list below has all of them` },
    lanes.map((shard) => [s("line", { class: "lane", x1: LEFT, x2: WIDTH, y1: y(shard), y2: y(shard) }), s("text", { class: "lane-name", x: 0, y: y(shard) + 4 }, shard === null ? "base table" : shard.slice(0, 8))]),
    steps.map((ms, i) => [s("line", { class: "tick", x1: x(ms), x2: x(ms), y1: TOP, y2: height - 22 }), s("text", { class: "tick-name", x: x(ms), y: height - 6, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, moment(ms))]),
    events.filter((event) => event.kind === "compaction" && event.shard_id).map((event) => s("line", { class: "drop", x1: x(event.time_ms), x2: x(event.time_ms), y1: y(event.shard_id), y2: y(null) })),
    events.filter((event) => event.shard_id === null || lanes.includes(event.shard_id)).map((event) => mark(event, x(event.time_ms), y(event.shard_id))));
}

function mark(event, x, y) {
  const size = event.rows ? Math.min(11, 4.5 + Math.log10(Math.abs(event.rows) + 1)) : 5.5;
  const title = s("title", {}, `${moment(event.time_ms)} ${event.text}${event.rows ? ` (${plural(event.rows, "row")})` : ""}`);
  const shared = { class: "event", "data-kind": event.kind };
  if (event.kind === "takeover") return s("path", { ...shared, d: `M${x},${y - 9}L${x + 8},${y + 6}L${x - 8},${y + 6}Z` }, title);
  if (event.kind === "compaction" || event.kind === "base") return s("rect", { ...shared, x: x - size, y: y - size, width: 2 * size, height: 2 * size, rx: 2 }, title);
  if (event.kind === "trim") return s("path", { ...shared, d: `M${x - 5},${y - 5}L${x + 5},${y + 5}M${x + 5},${y - 5}L${x - 5},${y + 5}` }, title);
  return s("circle", { ...shared, cx: x, cy: y, r: size }, title);
}
