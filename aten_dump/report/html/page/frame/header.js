/** The head of the page: what is shown, tabs, which step and rank, the search. */

import { address, currentPlace, go, TENSOR, VIEWS } from "./address.js";
import { h, replace } from "./dom.js";
import { toggleHelp } from "./help.js";
import { nextTheme, themeName } from "./theme.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./address.js").Place} Place */

/** @type {Record<string, string>} */
export const TITLES = {
  answer: "Answer", strip: "Strip", calls: "Calls", call: "Call", graph: "Graph", steps: "Over steps", memory: "Memory", tensor: "Tensor",
};

export class Header {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.tabs = h("nav", { class: "tabs", "aria-label": "Views" });
    this.search = /** @type {HTMLInputElement} */ (h("input", {
      type: "search", id: "search", class: "search", placeholder: "Search calls", "aria-label": "Search calls",
      spellcheck: "false", autocomplete: "off", "aria-describedby": "search-note", oninput: () => this.searched(),
    }));
    this.note = h("span", { id: "search-note", class: "search-note", role: "status" });
    this.picker = h("span", { class: "pickers" });
    this.theme = h("button", { type: "button", class: "quiet", onclick: () => this.changeTheme() });
    this.element = h("header", { class: "top" },
      h("div", { class: "top-row" },
        h("a", { class: "product", href: "#view=answer" }, "aten-dump"), this.title(), this.picker,
        this.theme, h("button", { type: "button", class: "quiet", onclick: toggleHelp, "aria-label": "Help: keys and search" }, "?")),
      h("div", { class: "top-row" }, this.tabs, h("span", { class: "search-box", role: "search" }, this.search, this.note)));
    this.showTheme();
  }

  title() {
    const path = this.app.path("target");
    const baseline = this.app.comparison ? this.app.path("baseline") : "";
    return h("span", { class: "dump-title", title: baseline ? `${path} against ${baseline}` : path },
      h("b", {}, lastName(path)), baseline ? " against " : "", baseline ? h("b", {}, lastName(baseline)) : "");
  }

  searched() {
    const { view } = currentPlace();
    const target = view === "strip" ? "strip" : "calls";
    go({ view: target, q: this.search.value }, { replace: view === target });
  }

  changeTheme() {
    nextTheme();
    this.showTheme();
  }

  showTheme() {
    replace(this.theme, themeName());
    this.theme.setAttribute("aria-label", `Theme: ${themeName()}`);
  }

  /** @param {Place} place */
  show(place) {
    const views = this.app.source.isServed ? [...VIEWS, TENSOR] : VIEWS;
    const links = views.map((view) => {
      const ofTensor = view === TENSOR ? {} : { dims: "", at: "", show: "", share: "" };
      const target = address({ ...place, ...ofTensor, view, module: view === "graph" ? place.module : "" });
      return h("a", { href: target, "aria-current": view === place.view ? "page" : null }, TITLES[view]);
    });
    replace(this.tabs, links);
    if (this.search.value !== place.q && document.activeElement !== this.search) this.search.value = place.q;
    this.showPicker(place);
  }

  /** @param {Place} place */
  showPicker(place) {
    const current = this.app.rankNamed(place);
    const ranks = [...this.app.ranks.values()];
    if (ranks.length < 2 || !current) return replace(this.picker);
    const select = h("select", { "aria-label": "Step and rank", onchange: (/** @type {Event} */ event) => this.picked(event) });
    for (const rank of ranks) {
      const side = this.app.comparison ? `${rank.side}, ` : "";
      select.append(h("option", { value: rank.key, selected: rank === current }, `${side}step ${rank.step} rank ${rank.rank}`));
    }
    replace(this.picker, select);
  }

  /** @param {Event} event */
  picked(event) {
    const rank = this.app.ranks.get(/** @type {HTMLSelectElement} */ (event.target).value);
    if (rank) go(this.app.placeOf(rank));
  }

  /** @param {string} text what came of the search */
  say(text) {
    replace(this.note, text);
  }
}

/** @param {string} path */
function lastName(path) {
  return path.replace(/\/+$/, "").split("/").pop() || path;
}
