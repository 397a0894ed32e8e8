// The query box: scan, SQL, get and search, the rows, and the plan as a picture.

import { ask } from "./api.js";
import { cell, h, plural, seconds, table } from "./dom.js";
import { pictures } from "./plan.js";

const KINDS = [["scan", "Scan"], ["sql", "SQL"], ["get", "Get"], ["search", "Search"]];

export class Query {
  constructor(app) {
    this.app = app;
    this.kind = "scan";
    this.running = null;
    this.fields = h("div", { class: "fields" });
    this.run = h("button", { type: "submit", class: "primary" }, "Run");
    this.cancel = h("button", { type: "button", hidden: true, onclick: () => this.running?.abort() }, "Cancel");
    this.status = h("p", { class: "status", role: "status" });
    this.answer = h("div");
    const kinds = h("fieldset", { class: "kinds" }, h("legend", { class: "unseen" }, "Kind of query"), KINDS.map(([kind, name]) =>
      h("label", {}, h("input", { type: "radio", name: "kind", value: kind, checked: kind === this.kind, onchange: () => this.choose(kind) }), h("span", {}, name))));
    this.form = h("form", { class: "query", onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      kinds, this.fields, h("div", { class: "actions" }, this.run, this.cancel, h("span", { class: "hint" }, "Ctrl + Enter runs it")));
    this.form.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.submit(); });
    this.element = h("div", {}, h("section", { "aria-labelledby": "query" }, h("h2", { id: "query" }, "Query"), this.form), this.status, this.answer);
    this.choose(this.kind);
  }

  choose(kind) {
    this.kind = kind;
    const columns = this.app.facts?.columns ?? [];
    const key = this.app.facts?.key ?? [];
    const choice = (name, label, kind) => field(label, h("select", { name }, h("option", { value: "" }, "the only one, or by index"), columns.filter((column) => column.search === kind).map((column) => h("option", { value: column.name }, column.name))));
    const text = (name, label, { wide = false, ...more } = {}) => field(label, h("input", { name, autocomplete: "off", spellcheck: "false", ...more }), wide);
    const most = this.app.facts?.max_rows ?? 1000;
    const number = (name, label, value) => field(label, h("input", { name, type: "number", min: 1, max: most, value }));
    const shown = {
      scan: () => [text("filter", "Filter", { placeholder: "for example: city = 'Oslo' and n > 3", wide: true }), text("columns", "Columns", { placeholder: "all" }), text("order_by", "Order by", { placeholder: "-column: largest first" }), number("limit", "Rows", 100)],
      sql: () => [field("SQL: the table is t", h("textarea", { name: "sql", rows: 4, spellcheck: "false" }, "select count(*) as rows from t"), true), number("limit", "Rows", 100)],
      get: () => [text("key", key.length > 1 ? `Key: a JSON array of ${key.join(", ")}` : `Key: ${key[0] ?? "this table has none"}`, { wide: true }), text("columns", "Columns", { placeholder: "all" })],
      search: () => [text("text", "Words", { wide: true }), text("vector", "Vector", { placeholder: "[0.1, 0.2, …]", wide: true }),
        choice("text_column", "Words in", "text"), choice("vector_column", "Vector in", "vector"),
        text("filter", "Filter"), number("k", "Best", 10)],
    };
    this.fields.replaceChildren(...shown[kind]());
  }

  question() {
    const given = { kind: this.kind };
    for (const [name, value] of new FormData(this.form)) if (name !== "kind" && value !== "") given[name] = name === "limit" || name === "k" ? Number(value) : value;
    const { text_column, vector_column, ...rest } = given;
    if (this.kind !== "search") return given;
    const column = [given.text && text_column, given.vector && vector_column].filter(Boolean).join(", ");
    return column ? { ...rest, column } : rest;
  }

  async submit() {
    if (this.running) return;
    this.running = new AbortController();
    this.run.disabled = true;
    this.cancel.hidden = false;
    this.status.textContent = "running …";
    try {
      const found = await ask(this.question(), this.running.signal);
      this.status.textContent = `${plural(found.rows.length, "row")}${found.more ? ", and there are more" : ""} · ${seconds(found.seconds)}${found.cut ? ` · ${plural(found.cut, "long value")} cut` : ""}`;
      this.answer.replaceChildren(...this.shown(found));
    } catch (error) {
      this.status.textContent = "";
      const text = error.name === "AbortError" ? "The query was cancelled." : error.message;
      this.answer.replaceChildren(h("div", { class: "problem", role: "alert" }, h("strong", {}, error.kind && error.kind !== "Refused" ? error.kind : "Not answered"), h("p", {}, text)));
    } finally {
      this.running = null;
      this.run.disabled = false;
      this.cancel.hidden = true;
    }
  }

  shown(found) {
    const columns = found.columns.map((column, place) => ({ name: h("span", {}, column.name, h("span", { class: "type" }, column.type)), number: column.number, cell: (row) => cell(row[place], column.type) }));
    const empty = found.kind === "get" ? "There is no row with this key." : "No rows.";
    const rows = found.rows.length ? table(`Answer: ${plural(found.rows.length, "row")}`, columns, found.rows, { hideCaption: true, tall: true }) : h("p", { class: "empty" }, empty);
    return [
      h("section", { "aria-labelledby": "answer" }, h("h2", { id: "answer" }, "Answer"), rows),
      h("section", { "aria-labelledby": "plan" }, h("h2", { id: "plan" }, "What was read"), pictures(found.plans)),
    ];
  }
}

const field = (label, input, wide) => h("label", { class: wide ? "wide" : null }, h("span", {}, label), input);
