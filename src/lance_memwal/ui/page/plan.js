// The plan of a query as a picture: what was read, what something newer hides, what came into the answer, what was left out.

import { brief, bytes, count, h, plural, shardName } from "./dom.js";

const NAMES = { log: "log", memtable: "memtable", sstable: "SSTable" };

/** The pictures of all scans that a query made. */
export function pictures(plans) {
  if (!plans.length) return h("p", { class: "empty" }, "This query read no rows of the table.");
  return h("div", {}, legend(plans), plans.map((plan, index) => picture(plan, plans.length > 1 ? `Scan ${index + 1} of ${plans.length}` : "")));
}

function legend(plans) {
  const traced = plans.some((plan) => plan.base?.answered !== null && plan.base?.answered !== undefined);
  const parts = [["read", "read"], ["superseded", "superseded: a newer row of the key hides it"], ["pruned", "left out"]];
  if (traced) parts.splice(1, 0, ["answered", "in the answer"]);
  return h("ul", { class: "plan-legend" }, parts.map(([kind, text]) => h("li", {}, h("span", { class: `sample ${kind}` }), text)));
}

function picture(plan, title) {
  const facts = [["columns", plan.columns.join(", ") || "none"], ["filter", plan.filter], ["order", plan.order], ["limit", plan.limit]]
    .filter(([, value]) => value !== null && value !== undefined);
  const base = plan.base;
  return h("div", { class: "plan" },
    title ? h("h4", {}, title) : null,
    h("dl", { class: "plan-facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))),
    h("ol", { class: "plan-shards" }, plan.shards.map(shard), plan.pruned.map((id) => h("li", { class: "plan-shard pruned" }, h("div", { class: "plan-name" }, shardName(id)), h("p", { class: "small" }, "left out: the filter cannot match there"))),
      plan.shards_in_all > plan.shards.length ? h("li", { class: "small" }, `and ${plural(plan.shards_in_all - plan.shards.length, "more shard")}`) : null),
    base ? h("div", { class: "plan-base" },
      h("div", { class: "plan-name" }, h("strong", {}, "Base table"), h("span", { class: "small" }, `version ${base.version}`)),
      h("div", { class: "tiles" }, base.fragments.map((part) => tile(`fragment ${part.fragment}`, part, "base", part.rows - part.deleted, part.read === false))),
      base.fragments_in_all > base.fragments.length ? h("p", { class: "small" }, `and ${plural(base.fragments_in_all - base.fragments.length, "more fragment")}`) : null,
      h("p", { class: "small" }, base.fragments_read === null ? "" : `${count(base.fragments_read)} of ${plural(base.fragments_in_all, "fragment")} read, ${bytes(base.bytes_read)}: `, `${plural(base.rows, "row")}${base.superseded === null ? "" : `, ${count(base.superseded)} superseded`}${base.answered === null ? "" : `, ${count(base.answered)} in the answer`}`)) : null,
    plan.text ? h("details", {}, h("summary", {}, "In words"), h("pre", {}, plan.text)) : null);
}

function shard(found) {
  const kept = Object.entries(found.kept_for).map(([name, number]) => `${count(number)} kept for index ${name}`).join(", ");
  return h("li", { class: "plan-shard" },
    h("div", { class: "plan-name" }, shardName(found.shard), h("span", { class: "small" }, `epoch ${found.epoch} · manifest ${found.manifest}`)),
    h("div", { class: "tiles" },
      found.tiers.map((part) => tile(`${NAMES[part.tier]} ${part.generation}`, part, part.tier === "sstable" ? "sstable" : "memtable", part.rows)),
      found.skipped ? h("div", { class: "tile pruned" }, h("span", { class: "tile-name" }, `${plural(found.skipped, "compacted SSTable")}`), h("span", { class: "small" }, kept || "left out: the base table has them")) : null,
      !found.tiers.length && !found.skipped ? h("p", { class: "small" }, "nothing above the base table") : null));
}

function tile(name, part, tier, rows, left = false) {
  const whole = Math.max(1, rows ?? 0);
  const share = (value) => `${Math.min(100, (100 * (value ?? 0)) / whole).toFixed(2)}%`;
  const told = [
    left ? "left out" : null,
    rows === null ? "rows unknown" : plural(rows, "row"),
    part.superseded ? `${brief(part.superseded)} superseded` : null,
    part.tombstones ? plural(part.tombstones, "delete") : null,
    part.deleted ? `${brief(part.deleted)} deleted` : null,
    part.answered ? `${brief(part.answered)} in the answer` : null,
    part.indexes?.length ? `by ${part.indexes.join(", ")}` : null,
  ].filter(Boolean);
  return h("div", { class: left ? "tile pruned" : "tile", "data-tier": tier, title: part.path ?? name },
    h("span", { class: "tile-name" }, name),
    h("span", { class: "gauge", "aria-hidden": "true" }, h("span", { class: "answered", css: { width: share(part.answered) } }), h("span", { class: "superseded", css: { width: share(part.superseded) } })),
    told.map((text) => h("span", { class: "small" }, text)));
}
