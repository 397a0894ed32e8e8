// The page: which view is shown, the theme, and looking again and again while somebody looks.

import { get, takeToken } from "./api.js";
import { ago, h } from "./dom.js";
import { Overview } from "./overview.js";
import { Query } from "./query.js";
import { Storage } from "./storage.js";
import { Timeline } from "./timeline.js";

const KEPT = 900, THEME = "memwal-theme";
const at = (id) => document.getElementById(id);

class App {
  constructor() {
    this.facts = null;
    this.look = null;
    this.samples = [];
    this.paused = false;
    this.views = {};
    this.timer = 0;
  }

  async start() {
    takeToken();
    this.theme();
    at("pause").addEventListener("click", () => this.pause());
    document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); at("main").focus(); });
    addEventListener("hashchange", () => this.show());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.refresh(); });
    await this.learn();
    this.show();
    await this.refresh();
  }

  theme() {
    const choose = (value) => {
      if (value === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = value;
    };
    const select = at("theme");
    select.value = localStorage.getItem(THEME) ?? "auto";
    choose(select.value);
    select.addEventListener("change", () => { localStorage.setItem(THEME, select.value); choose(select.value); });
  }

  pause() {
    this.paused = !this.paused;
    at("pause").setAttribute("aria-pressed", String(this.paused));
    at("pause").textContent = this.paused ? "Go on" : "Pause";
    this.paused ? this.pulse("paused", "paused") : this.refresh();
  }

  /** What the table is: asked again when its base version changes. */
  async learn() {
    try {
      this.facts = await get("/api/table");
      document.title = `${this.facts.name} · memwal`;
      at("table-name").textContent = this.facts.name;
      at("table-place").textContent = this.facts.uri;
      at("table-place").title = this.facts.uri;
      at("software").textContent = `memwal ${this.facts.software}.`;
    } catch (error) {
      this.trouble(error);
    }
  }

  /** Look at the table now; the next look comes by itself. */
  async refresh() {
    clearTimeout(this.timer);
    try {
      const parameters = this.views.overview?.parameters() ?? {};
      const look = await get("/api/look", { ...parameters, after: this.samples.at(-1)?.number ?? 0 });
      if (look.number < (this.look?.number ?? 0)) this.samples = [];  // the server began anew
      this.samples.push(...look.samples.filter((sample) => sample.number > (this.samples.at(-1)?.number ?? 0)));
      this.samples.splice(0, Math.max(0, this.samples.length - KEPT));
      this.look = look;
      this.trouble(null);
      this.pulse("live", "live");
      if (this.facts && this.facts.base_version !== look.stats.base_version) await this.learn();
      this.views.overview?.update(look, this.samples, this.facts);
    } catch (error) {
      this.trouble(error);
      this.pulse("lost", this.look ? `last seen ${ago(this.look.time_ms)}` : "not connected");
    }
    clearTimeout(this.timer);
    if (!this.paused && !document.hidden) this.timer = setTimeout(() => this.refresh(), 1000 * (this.facts?.every_seconds ?? 2));
    return this.look;
  }

  pulse(state, text) {
    at("pulse").dataset.state = this.paused ? "paused" : state;
    at("pulse-text").textContent = this.paused ? "paused" : text;
  }

  trouble(error) {
    if (!error) { at("trouble").replaceChildren(); return; }
    if (at("trouble").dataset.text === error.message && at("trouble").childElementCount) return;
    at("trouble").dataset.text = error.message;
    at("trouble").replaceChildren(h("div", { class: "problem" }, h("strong", {}, error.kind ?? "Unexpected"), h("p", {}, error.message)));
  }

  async show() {
    const [, name = "overview", argument] = location.hash.split("/");
    const kinds = { overview: Overview, query: Query, storage: Storage, timeline: Timeline };
    const chosen = kinds[name] ? name : "overview";
    const view = (this.views[chosen] ??= new kinds[chosen](this));
    for (const link of at("views").querySelectorAll("a")) {
      if (link.hash === `#/${chosen}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const before = at("main").firstElementChild;
    at("main").replaceChildren(view.element);
    if (before && before !== view.element) { at("main").focus({ preventScroll: true }); scrollTo(0, 0); }
    if (chosen === "overview" && this.look) view.update(this.look, this.samples, this.facts);
    if (view.open) await view.open(argument);
  }
}

new App().start();
