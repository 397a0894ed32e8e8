// Elements and words. Everything that a table holds becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes, listeners (`onclick`), and children that are elements or texts. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The element that shows an error. */
export function problem(error) {
  return h("div", { class: "problem", role: "alert" }, h("strong", {}, error.kind ?? "Unexpected"), h("p", {}, error.message));
}

/** The same as `h`, for drawings. */
export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A table with a caption; `columns` are {name, number, cell, className}, and `cell` makes what stands in a row. */
export function table(caption, columns, rows, options = {}) {
  const heads = columns.map((c) => h("th", { scope: "col", class: c.number ? "number" : null }, c.name));
  const body = rows.map((row, index) => h("tr", options.row ? options.row(row, index) : {}, columns.map((c, place) => {
    const tag = c.head ? "th" : "td";
    const shown = c.cell ? c.cell(row, index) : row[place];
    return h(tag, { class: [c.number ? "number" : "", c.className ?? ""].join(" ").trim() || null, scope: c.head ? "row" : null }, shown);
  })));
  return h("div", { class: options.tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: options.hideCaption ? "unseen" : null }, caption), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body)));
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** A whole number with its thousands apart. */
export const count = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

/** A number for a small place: 12.3K. */
export const brief = (value) => (value === null || value === undefined ? "–" : Math.abs(value) < 10000 ? WHOLE.format(value) : SHORT.format(value));

/** A rate: one digit behind the point where it is small. */
export const rate = (value) => (value === null || value === undefined ? "–" : value >= 100 ? brief(Math.round(value)) : value === 0 ? "0" : value.toFixed(value < 1 ? 2 : 1));

/** Bytes for people. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value, unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return unit === 0 ? `${Math.round(size)} B` : `${size.toFixed(size < 10 ? 1 : 0)} ${units[unit]}`;
}

/** Seconds for people. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
}

/** How long ago a time of the store was. */
export const ago = (ms, now = Date.now()) => (ms === null || ms === undefined ? "never" : now - ms < 1500 ? "just now" : `${seconds((now - ms) / 1000)} ago`);

/** The time of day, with the date where it is not today's. */
export function moment(ms) {
  if (ms === null || ms === undefined) return "–";
  const then = new Date(ms), today = new Date().toDateString() === then.toDateString();
  const time = then.toLocaleTimeString("en-GB");
  return today ? time : `${then.toLocaleDateString("en-CA")} ${time}`;
}

/** "1 row", "2 rows". */
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** The first part of a shard id, with the whole of it in the title. */
export const shardName = (id) => h("code", { class: "shard", title: id }, id.slice(0, 8));

const SHORT_FLOATS = new Set(["float", "halffloat"]); // JSON shows them with digits that they do not have

/** A value of a row, of a column of this type. */
export function cell(value, type) {
  if (value === null) return h("span", { class: "null" }, "null");
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : String(SHORT_FLOATS.has(type) ? Number(value.toPrecision(7)) : value);
  return String(value);
}
