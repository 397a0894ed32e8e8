// The table now: its tiers from the log to the base table, every shard, and what happened lately.

import { ago, brief, bytes, count, h, plural, rate, seconds, shardName, table } from "./dom.js";
import { Plot } from "./plot.js";

const TIERS = [["log", "Log"], ["memtable", "Memtable"], ["frozen", "Frozen"], ["sstable", "SSTables"], ["base", "Base table"]];

export class Overview {
  constructor(app) {
    this.app = app;
    this.order = "busy";
    this.from = 0;
    const text = (name) => (sample) => sample[name];
    const call = (name) => (sample) => (sample.latency[name] === undefined ? null : sample.latency[name]);
    this.plots = [
      new Plot("Entries per second", { series: [{ name: "entries", color: "var(--log)", of: text("entries") }], show: rate }),
      new Plot("Bytes per second", { series: [{ name: "bytes", color: "var(--log)", of: text("size_bytes") }], show: bytes }),
      new Plot("Not flushed yet", { series: [{ name: "entries", color: "var(--memtable)", of: text("lag_entries") }], show: brief }),
      new Plot("SSTables to compact", { series: [{ name: "SSTables", color: "var(--sstable)", of: text("debt_generations") }], show: brief }),
      new Plot("Live rows", { series: [{ name: "rows", color: "var(--base)", of: text("live_rows") }], show: brief }),
      new Plot("Store calls of this page", {
        series: [{ name: "get", color: "var(--memtable)", of: call("get") }, { name: "list", color: "var(--sstable)", of: call("list") }],
        show: seconds,
      }),
    ];
    this.figures = h("dl", { class: "figures" });
    this.flow = h("ol", { class: "flow" });
    this.shards = h("div");
    this.about = h("details", { class: "about" }, h("summary", {}, "Columns and indexes"));
    this.notes = h("ul", { class: "notes" });
    this.element = h("div", {},
      h("section", { "aria-labelledby": "now" }, h("h2", { id: "now", class: "unseen" }, "Now"), this.figures),
      h("section", { "aria-labelledby": "tiers" }, h("h2", { id: "tiers" }, "Where rows are"), this.flow, this.notes),
      h("section", { "aria-labelledby": "plots" }, h("h2", { id: "plots" }, "Rates and latencies"), h("div", { class: "plots" }, this.plots.map((plot) => plot.element))),
      h("section", { "aria-labelledby": "shards" }, h("div", { class: "heading" }, h("h2", { id: "shards" }, "Shards"), this.choice()), this.shards),
      h("section", {}, this.about));
  }

  choice() {
    const select = h("select", { id: "order", onchange: () => { this.order = select.value; this.from = 0; this.app.refresh(); } },
      h("option", { value: "busy" }, "busiest first"), h("option", { value: "id" }, "by id"));
    return h("label", { class: "inline" }, "Order ", select);
  }

  parameters() { return { order: this.order, from: this.from }; }

  update(look, samples, facts) {
    this.figures.replaceChildren(...figures(look, facts));
    this.flow.replaceChildren(...flow(look));
    this.notes.replaceChildren(...notes(look));
    if (facts && facts !== this.facts) this.describe(facts);
    for (const plot of this.plots) plot.update(samples);
    keeping(this.shards, () => this.shards.replaceChildren(this.lanes(look), this.pages(look)));
  }

  describe(facts) {
    this.facts = facts;
    const columns = [
      { name: "Column", head: true, cell: (c) => h("code", {}, c.name) }, { name: "Type", cell: (c) => c.type },
      { name: "Nulls", cell: (c) => (c.nullable ? "allowed" : "none") }, { name: "Place in the key", number: true, cell: (c) => (c.key === null ? "" : count(c.key)) },
      { name: "Index", cell: (c) => facts.indexes.filter((i) => i.columns.includes(c.name)).map((i) => `${i.name} (${i.index_type}${i.maintained ? ", mirrored by fresh tiers" : ""})`).join(", "), className: "wrap" },
    ];
    const rules = `sharding: ${facts.sharding}${facts.merge ? `; merge: ${facts.merge}` : ""}`;
    this.about.replaceChildren(this.about.firstElementChild, table("Columns of the table", columns, facts.columns, { hideCaption: true }), h("p", { class: "small" }, rules));
  }

  lanes(look) {
    if (!look.shards.length) return h("p", { class: "empty" }, "No shards: nothing was written yet.");
    const most = Math.max(1, ...look.shards.flatMap((shard) => shard.generations.map((g) => g.rows ?? 0)));
    const inTier = (shard, tier) => shard.generations.filter((g) => g.tier === tier);
    const columns = [
      { name: "Shard", head: true, cell: (shard) => h("div", { class: "who" }, shardName(shard.shard_id), h("span", { class: "small" }, `epoch ${shard.epoch}`)) },
      { name: "Log", cell: (shard) => stack(plural(shard.wal_lag_entries, "entry", "entries"), shard.wal_lag_entries ? `${bytes(shard.wal_lag_bytes)} · oldest ${ago(shard.lag_since_ms, look.time_ms)}` : `tip ${count(shard.wal_tip)}`, "log") },
      { name: "Memtable", cell: (shard) => blocks(inTier(shard, "memtable"), most, "memtable") },
      { name: "Frozen", cell: (shard) => blocks(inTier(shard, "frozen"), most, "frozen") },
      { name: "SSTables", cell: (shard) => blocks([...inTier(shard, "compacted"), ...inTier(shard, "sstable")], most, "sstable") },
      { name: "In the base table", cell: (shard) => stack(`${count(shard.compacted_generation)} of ${plural(Math.max(shard.compacted_generation, shard.current_generation - 1), "generation")}`, shard.uncompacted_generations ? `${plural(shard.uncompacted_rows, "row")} behind${shard.due ? " · due" : ""}` : "up to date", "base") },
      { name: "Entries/s", number: true, cell: (shard) => rate(shard.rates.entries) },
      { name: "Last write", number: true, cell: (shard) => ago(shard.written_ms, look.time_ms) },
      { name: "", cell: (shard) => h("a", { id: `storage-${shard.shard_id}`, href: `#/storage/${shard.shard_id}`, "aria-label": `Log and manifests of shard ${shard.shard_id.slice(0, 8)}` }, "open") },
    ];
    return table("Shards, and what each of their tiers holds", columns, look.shards, { hideCaption: true });
  }

  pages(look) {
    const shown = look.shards.length;
    if (look.shards_in_all <= shown) return "";
    const go = (by) => { this.from = Math.max(0, this.from + by); this.app.refresh(); };
    return h("p", { class: "pages" },
      h("button", { id: "shards-back", type: "button", disabled: this.from === 0, onclick: () => go(-50) }, "Previous"),
      ` ${count(this.from + 1)} to ${count(this.from + shown)} of ${count(look.shards_in_all)} `,
      h("button", { id: "shards-next", type: "button", disabled: this.from + shown >= look.shards_in_all, onclick: () => go(50) }, "Next"));
  }
}

/** Draw anew without losing the focus and how far somebody had scrolled. */
function keeping(element, draw) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const scrolled = element.querySelector(".scroll")?.scrollLeft ?? 0;
  draw();
  const region = element.querySelector(".scroll");
  if (region) region.scrollLeft = scrolled;
  if (focused?.id) document.getElementById(focused.id)?.focus();
  else if (focused?.classList.contains("scroll")) region?.focus();
}

function figures(look, facts) {
  const { stats, tiers } = look;
  const fresh = tiers.memtable.rows + tiers.frozen.rows + tiers.sstable.rows;
  const due = stats.compaction_due.length;
  const one = (id, name, value, more) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", { id: `figure-${id}`, class: "value", "data-value": String(value.raw) }, value.text), h("dd", { class: "small" }, more));
  const whole = (raw) => ({ raw, text: count(raw) });
  return [
    one("live", "Live rows", whole(stats.live_rows), facts?.key.length ? `newest row per ${facts.key.join(", ")}` : "append-only"),
    one("fresh", "Fresh rows", whole(fresh), "not in the base table yet, older versions included"),
    one("lag", "Log lag", whole(stats.wal_lag_entries), stats.wal_lag_entries ? `entries · ${bytes(stats.wal_lag_bytes)} · oldest ${ago(look.oldest_lag_ms, look.time_ms)}` : "entries: everything is flushed"),
    one("debt", "Compaction debt", whole(stats.uncompacted_generations), `SSTables · ${bytes(stats.uncompacted_bytes)} · ${due ? `due in ${plural(due, "shard")}` : "not due"}`),
    one("base", "Base rows", whole(stats.base_rows), `version ${stats.base_version} · ${plural(stats.base_fragments, "fragment")} · ${bytes(stats.base_bytes)}`),
  ];
}

function flow(look) {
  const { stats, tiers, rates } = look;
  const per = (value, unit, times = 1) => (rates === null ? null : [h("strong", {}, rate(value * times)), h("br"), unit]);
  const told = {
    log: [plural(stats.wal_lag_entries, "entry", "entries"), bytes(stats.wal_lag_bytes), per(rates?.entries, "entries/s")],
    memtable: [plural(tiers.memtable.rows, "row"), plural(tiers.memtable.generations, "generation"), null],
    frozen: [plural(tiers.frozen.rows, "row"), plural(tiers.frozen.generations, "generation"), per(rates?.flushes, "flushes/min", 60)],
    sstable: [plural(tiers.sstable.rows, "row"), `${plural(tiers.sstable.generations, "SSTable")}${tiers.compacted.generations ? `, ${count(tiers.compacted.generations)} compacted` : ""}`, per(rates?.compacted, "compacted/min", 60)],
    base: [plural(stats.base_rows, "row"), `version ${stats.base_version}`, null],
  };
  return TIERS.map(([tier, name]) => h("li", { class: "stage", "data-tier": tier },
    h("div", { class: "box" }, h("h3", {}, name), h("p", { class: "big" }, told[tier][0]), h("p", { class: "small" }, told[tier][1])),
    tier === "base" ? null : h("div", { class: "arrow" }, h("span", {}, told[tier][2]))));
}

function notes(look) {
  const { stats } = look;
  const found = [];
  for (const [name, waiting] of Object.entries(stats.waiting_for_indexes)) if (waiting) found.push(`${plural(waiting, "compacted SSTable")} kept until index ${name} has their rows`);
  for (const consumer of stats.consumers) found.push(`the ${consumer.state} consumer ${consumer.name} is ${plural(consumer.lag_entries, "log entry", "log entries")} behind`);
  return found.map((text) => h("li", {}, text));
}

const stack = (above, below, tier) => h("div", { class: "stack", "data-tier": tier }, h("span", {}, above), h("span", { class: "small" }, below));

function blocks(generations, most, tier) {
  if (!generations.length) return h("span", { class: "none" }, "–");
  const rows = generations.filter((g) => g.tier !== "compacted").reduce((sum, g) => sum + (g.rows ?? 0), 0);
  const height = (g) => `${Math.round(5 + 15 * Math.sqrt((g.rows ?? 0) / most))}px`;
  const drawn = generations.slice(-24).map((g) => h("li", { class: "block", "data-tier": g.tier, css: { height: height(g) }, title: `generation ${g.generation}: ${plural(g.rows ?? 0, "row")}, ${g.tier}` },
    h("span", { class: "unseen" }, `generation ${g.generation}, ${plural(g.rows ?? 0, "row")}, ${g.tier}`)));
  const first = generations[0].generation, last = generations.at(-1).generation;
  return h("div", { class: "stack", "data-tier": tier },
    h("span", { class: "with-blocks" }, plural(rows, "row"), h("ul", { class: "blocks" }, drawn)),
    h("span", { class: "small" }, first === last ? `generation ${first}` : `generations ${first}–${last}`));
}
