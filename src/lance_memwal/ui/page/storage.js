// The log and the manifests of a shard, with what every manifest changed.

import { get } from "./api.js";
import { ago, bytes, cell, count, h, moment, plural, problem, table } from "./dom.js";

const FIELDS = { writer_epoch: "epoch", current_generation: "current generation", replay_after_wal_entry_position: "replay cursor", wal_entry_position_last_seen: "last position seen", status: "status", shard_spec_id: "sharding spec", shard_field_entries: "shard values" };

export class Storage {
  constructor(app) {
    this.app = app;
    this.shard = null;
    this.select = h("select", { id: "storage-shard", onchange: () => { location.hash = `#/storage/${this.select.value}`; } });
    this.log = h("div");
    this.entry = h("div", { class: "detail", tabindex: "-1" });
    this.manifests = h("div");
    this.element = h("div", {},
      h("div", { class: "heading" }, h("h2", {}, "Storage of a shard"), h("label", { class: "inline" }, "Shard ", this.select), h("button", { type: "button", onclick: () => this.load() }, "Read again")),
      h("div", { class: "columns" },
        h("section", { "aria-labelledby": "log" }, h("h3", { id: "log" }, "Log, newest entry first"), this.log, this.entry),
        h("section", { "aria-labelledby": "manifests" }, h("h3", { id: "manifests" }, "Manifests, newest first"), this.manifests)));
  }

  async open(shard) {
    const look = this.app.look ?? await this.app.refresh();
    const ids = (look?.shards ?? []).map((one) => one.shard_id);
    if (shard && !ids.includes(shard)) ids.unshift(shard);
    this.shard = shard ?? ids[0] ?? null;
    this.select.replaceChildren(...ids.map((id) => h("option", { value: id, selected: id === this.shard }, id)));
    if (this.shard) await this.load();
    else this.log.replaceChildren(h("p", { class: "empty" }, "No shards: nothing was written yet."));
  }

  async load(before = null) {
    this.entry.replaceChildren();
    await Promise.all([this.part(this.log, () => this.readLog(before)), this.part(this.manifests, () => this.readManifests())]);
  }

  async part(place, read) {
    try {
      place.replaceChildren(...await read());
    } catch (error) {
      place.replaceChildren(problem(error));
    }
  }

  async readLog(before) {
    const found = await get("/api/log", { shard: this.shard, before });
    if (!found.entries.length) return [h("p", { class: "empty" }, "The log is empty.")];
    const show = (position) => this.part(this.entry, () => this.readEntry(position));
    const columns = [
      { name: "Position", number: true, head: true, cell: (e) => h("button", { type: "button", class: "link", onclick: () => show(e.position), "aria-label": `Entry ${e.position}` }, count(e.position)) },
      { name: "Kind", cell: (e) => h("span", { class: "kind", "data-kind": e.kind }, e.kind) },
      { name: "Epoch", number: true, cell: (e) => count(e.epoch) }, { name: "Generation", number: true, cell: (e) => count(e.generation) },
      { name: "Rows", number: true, cell: (e) => count(e.rows) }, { name: "Size", number: true, cell: (e) => bytes(e.bytes) },
      { name: "Transaction", cell: (e) => e.error ?? e.transaction ?? "", className: "wrap" },
    ];
    const last = found.entries.at(-1).position;
    return [h("p", { class: "small" }, `${plural(found.count, "entry", "entries")}, positions ${count(found.first)} to ${count(found.last)}`),
      table("Entries of the log", columns, found.entries, { hideCaption: true, tall: true }),
      h("p", { class: "pages" }, before ? h("button", { type: "button", onclick: () => this.load() }, "Newest") : null, " ", found.older ? h("button", { type: "button", onclick: () => this.load(last) }, "Older") : null)];
  }

  async readEntry(position) {
    const found = await get("/api/entry", { shard: this.shard, position });
    const facts = [["written", found.written_ms === null ? "unknown" : moment(found.written_ms)], ["epoch", count(found.entry.epoch)], ["generation", count(found.entry.generation)], ["size", bytes(found.entry.bytes)], ["kind", found.joint ? `${found.entry.kind}, joint` : found.entry.kind]];
    const columns = found.columns.map((column, place) => ({ name: column.name, number: column.number, cell: (row) => cell(row[place], column.type) }));
    return [h("h4", {}, `Entry ${count(position)}`),
      h("dl", { class: "plan-facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      found.rows.length ? table(`Rows of entry ${position}`, columns, found.rows, { hideCaption: true, tall: true, row: (row) => ({ class: found.columns.at(-1)?.name === "_tombstone" && row.at(-1) === true ? "deleted" : null }) }) : h("p", { class: "empty" }, "This entry has no rows."),
      found.more ? h("p", { class: "small" }, "There are more rows.") : null].filter(Boolean);
  }

  async readManifests() {
    const found = await get("/api/manifests", { shard: this.shard });
    if (!found.manifests.length) return [h("p", { class: "empty" }, "The shard has no manifest: nobody wrote to it.")];
    const items = found.manifests.map((manifest) => h("li", {},
      h("div", { class: "manifest-head" }, h("strong", {}, `Version ${manifest.version}`), h("span", { class: "small", title: moment(manifest.time_ms) }, ago(manifest.time_ms))),
      manifest.changes === null ? h("p", { class: "small" }, "the version before it was collected")
        : manifest.changes.length ? h("ul", { class: "diff" }, manifest.changes.map(change)) : h("p", { class: "small" }, "changes nothing")));
    const more = found.count - found.manifests.length;
    return [this.comparing(found.versions), h("ol", { class: "manifests" }, items), more > 0 ? h("p", { class: "small" }, `and ${plural(more, "older one")}`) : null].filter(Boolean);
  }

  comparing(versions) {
    const newest = versions.at(-1), before = versions.at(-2) ?? newest;
    const one = (name, chosen) => h("select", { "aria-label": name }, [...versions].reverse().map((version) => h("option", { value: version, selected: version === chosen }, `version ${version}`)));
    const from = one("Compare this version", before), to = one("with this version", newest), result = h("div");
    const compare = () => this.part(result, async () => {
      const found = await get("/api/manifest", { shard: this.shard, version: to.value, against: from.value });
      return [found.changes?.length ? h("ul", { class: "diff" }, found.changes.map(change)) : h("p", { class: "small" }, "They do not differ.")];
    });
    return h("details", { class: "compare" }, h("summary", {}, "Compare two versions"), h("div", { class: "comparing" }, from, " with ", to, " ", h("button", { type: "button", onclick: compare }, "Compare")), result);
  }
}

function change(found) {
  if (found.what === "sstable") {
    const one = found.after ?? found.before, came = found.after !== null;
    return h("li", { class: came ? "came" : "gone" }, h("span", { class: "sign" }, came ? "+" : "−"), h("span", { class: "unseen" }, came ? "added:" : "removed:"), ` SSTable of generation ${one.generation}`,
      h("span", { class: "small" }, ` ${plural(one.physical_rows ?? 0, "row")}, ${bytes(one.in_memory_bytes)} in memory · ${one.path}`));
  }
  const text = (value) => (value === null || value === undefined ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return h("li", { class: "changed" }, h("span", { class: "sign" }, "~"), ` ${FIELDS[found.what] ?? found.what}: `, h("del", {}, text(found.before)), " → ", h("ins", {}, text(found.after)));
}


