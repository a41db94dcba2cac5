/** The tree of calls as a table of any length, with the search. */

import { PHASES } from "../data/calls.js";
import { formatCount, formatStatistic } from "../data/numbers.js";
import { noMatch, search, SearchError } from "../data/search.js";
import { go } from "../frame/address.js";
import { h, replace } from "../frame/dom.js";
import { severity } from "../parts/links.js";
import { VirtualRows } from "../parts/virtual_rows.js";
import { CallRow, COLUMNS, ROW_HEIGHT } from "./call_row.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */
/** @typedef {import("../data/rank.js").Rank} Rank */

const SMALL = 400; // calls up to which all are open at first

/** @implements {View} */
export class CallsView {
  /**
   * @param {App} app
   * @param {(text: string) => void} say what came of the search
   */
  constructor(app, say) {
    this.app = app;
    this.say = say;
    this.element = h("section", { class: "view calls-view", "aria-label": "Calls" });
    /** @type {Rank | null} */
    this.rank = null;
    /** Rows in the order in which they are shown. */
    this.rows = new Int32Array(0);
    /** @type {Uint8Array | null} */
    this.matched = null;
    this.selected = -1;
    this.query = "";
    this.statistic = "l2norm";
  }

  renew() {
    this.virtual?.soon();
  }

  /** @param {Place} place */
  async show(place) {
    const rank = await this.app.rankAt(place);
    if (!rank) return replace(this.element, h("p", { class: "empty" }, "The report shows no step and rank call by call."));
    const isNew = rank !== this.rank;
    if (isNew) this.open(rank);
    if (isNew || place.q !== this.query) this.find(rank, place.q);
    const call = place.call ? rank.loaded.calls.find(place.call) : -1;
    if (call !== this.selected || isNew) this.select(call, { centre: isNew });
  }

  /** @param {Rank} rank */
  open(rank) {
    this.rank = rank;
    this.selected = -1;
    const { calls, tree, judged } = rank.loaded;
    this.openCalls = new Uint8Array(calls.count);
    for (let call = 0; call < calls.count; call++) this.openCalls[call] = calls.count <= SMALL || tree.depth[call] < 1 ? 1 : 0;
    const names = this.statisticNames();
    if (!names.includes(this.statistic)) this.statistic = names[0] ?? "";
    this.grid = h("div", {
      class: `grid ${judged ? "judged" : ""}`, role: "treegrid", tabindex: "0", "aria-label": "Calls in execution order",
      "aria-multiselectable": "false", onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
      onclick: (/** @type {MouseEvent} */ event) => this.clicked(event),
      ondblclick: () => this.selected >= 0 && go({ view: "call" }),
    }, this.headRow(judged !== null));
    this.virtual = new VirtualRows(this.grid, {
      height: ROW_HEIGHT, make: () => new CallRow().element, fill: (row, index) => this.fill(row, index),
    });
    this.none = h("p", { class: "empty", hidden: true });
    replace(this.element, h("h1", { class: "unseen" }, "Calls"), this.bar(names), this.none, this.grid);
  }

  statisticNames() {
    const names = this.rank?.outline.statistics ?? [];
    return ["l2norm", "mean", "min", "max", "std", "nan"].filter((name) => names.includes(name));
  }

  /** @param {string[]} names */
  bar(names) {
    const choose = h("select", { onchange: (/** @type {Event} */ event) => {
      this.statistic = /** @type {HTMLSelectElement} */ (event.target).value;
      this.open(/** @type {Rank} */ (this.rank));
      this.find(/** @type {Rank} */ (this.rank), this.query);
    } }, names.map((name) => h("option", { value: name, selected: name === this.statistic }, name)));
    this.found = h("span", { class: "found" });
    return h("div", { class: "bar" },
      this.found,
      h("span", { class: "spacer" }),
      h("button", { type: "button", class: "quiet", onclick: () => this.openAll(true) }, "Open all"),
      h("button", { type: "button", class: "quiet", onclick: () => this.openAll(false) }, "Close all"),
      names.length ? h("label", {}, "Statistic ", choose) : null);
  }

  /** @param {boolean} isJudged */
  headRow(isJudged) {
    const titles = { ...COLUMNS, statistic: this.statistic };
    const cells = Object.entries(titles).filter(([name]) => isJudged || name !== "error").map(([name, title]) => {
      return h("span", { role: "columnheader", class: `cell ${name}` }, title);
    });
    return h("div", { class: "row head", role: "row" }, cells);
  }

  /** @param {boolean} isOpen */
  openAll(isOpen) {
    this.openCalls?.fill(isOpen ? 1 : 0);
    this.layOut();
  }

  /**
   * @param {Rank} rank
   * @param {string} query
   */
  find(rank, query) {
    this.query = query;
    try {
      if (/(^|\s)dtype:/.test(query) && !rank.resultOf) this.loadResults(rank);
      this.matched = search(rank, query, rank.resultOf);
      this.error = "";
    } catch (error) {
      if (!(error instanceof SearchError)) throw error;
      this.error = error.message;
      this.matched = new Uint8Array(rank.loaded.calls.count);
    }
    this.layOut();
    this.tell();
  }

  /** @param {Rank} rank */
  async loadResults(rank) {
    await rank.loadResults();
    if (this.rank === rank) this.find(rank, this.query);
  }

  tell() {
    const { calls } = /** @type {Rank} */ (this.rank).loaded;
    let count = 0;
    for (let call = 0; call < calls.count; call++) if (!this.matched || this.matched[call]) count++;
    const text = this.error || (this.matched ? `${count.toLocaleString("en")} of ${formatCount(calls.count, "call")}` : "");
    this.say(text);
    if (this.none) {
      this.none.hidden = count > 0 || Boolean(this.error);
      replace(this.none, this.query ? noMatch(this.query) : "No call was recorded in this step.");
    }
    if (this.found) replace(this.found, text || formatCount(calls.count, "call"));
    this.element.classList.toggle("wrong", Boolean(this.error));
  }

  layOut() {
    const { tree } = /** @type {Rank} */ (this.rank).loaded;
    const shown = this.matched ? tree.withOuter(this.matched) : null;
    const open = this.matched ? new Uint8Array(tree.order.length).fill(1) : /** @type {Uint8Array} */ (this.openCalls);
    this.rows = tree.rows(open, shown);
    this.grid?.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.virtual?.setCount(this.rows.length);
  }

  /**
   * @param {HTMLElement} element
   * @param {number} index
   */
  fill(element, index) {
    const rank = /** @type {Rank} */ (this.rank);
    const { calls, tree, judged } = rank.loaded;
    const call = this.rows[index];
    const row = CallRow.of(element);
    const isMatch = !this.matched || this.matched[call] !== 0;
    row.place({ index, call, isSelected: call === this.selected, isMatch, depth: tree.depth[call] });
    row.twist(tree.size[call] > 1, this.matched !== null || this.openCalls?.[call] === 1);
    row.text("name-text", calls.name(call));
    row.text("op", calls.ops[calls.op[call]].op);
    row.text("module", calls.fqn(call));
    row.text("phase", PHASES[calls.phase[call]]);
    row.text("time", calls.duration(call));
    if (judged) row.error(judged.statusOf(call), judged.error[call], severity(judged.overFloor(call)));
    this.fillResults(row, call);
  }

  /**
   * @param {CallRow} row
   * @param {number} call
   */
  fillResults(row, call) {
    const rank = /** @type {Rank} */ (this.rank);
    const found = rank.argumentsNow(call);
    if (!found) {
      row.text("result", "…");
      row.text("statistic", "");
      rank.arguments(call).then(() => this.virtual?.soon());
      return;
    }
    row.text("result", found.error ? `raised ${found.error}` : found.result);
    const output = [...found.of("output"), ...found.of("mutated")][0]?.[1];
    const isBad = [...found.of("output"), ...found.of("mutated")].some(([, value]) => value.nonfinite > 0);
    row.number(output?.hasStatistics ? formatStatistic(output.statistic(this.statistic)) : "", isBad);
  }

  /**
   * @param {number} call
   * @param {{centre?: boolean}} [options]
   */
  select(call, options = {}) {
    this.selected = call;
    const { tree } = /** @type {Rank} */ (this.rank).loaded;
    if (call >= 0 && this.openCalls && !this.matched) {
      let isChanged = false;
      for (let outer = tree.parent[call]; outer >= 0; outer = tree.parent[outer]) {
        if (!this.openCalls[outer]) isChanged = true;
        this.openCalls[outer] = 1;
      }
      if (isChanged) this.layOut();
    }
    const index = this.rows.indexOf(call);
    if (index >= 0) this.virtual?.reveal(index, options);
    this.virtual?.draw();
    this.grid?.setAttribute("aria-activedescendant", index >= 0 ? `row-${call}` : "");
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const element = /** @type {HTMLElement | null} */ (target.closest(".row:not(.head)"));
    if (!element) return;
    const call = CallRow.of(element).call;
    if (target.closest(".twisty")) this.toggle(call);
    else this.goTo(call);
  }

  /** @param {number} call */
  toggle(call) {
    if (!this.openCalls) return;
    this.openCalls[call] = this.openCalls[call] ? 0 : 1;
    this.layOut();
  }

  /** @param {number} call */
  goTo(call) {
    const rank = /** @type {Rank} */ (this.rank);
    go({ ...this.app.placeOf(rank), call: rank.loaded.calls.name(call) }, { replace: true });
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const moves = /** @type {Record<string, number>} */ ({ j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity });
    if (!this.rank || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.move(moves[event.key]);
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") this.turn(event.key === "ArrowRight");
    else if (event.key === "Enter" && this.selected >= 0) go({ view: "call" });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} by */
  move(by) {
    if (!this.rows.length) return;
    const index = this.rows.indexOf(this.selected);
    const target = index < 0 ? 0 : Math.max(0, Math.min(this.rows.length - 1, index + by));
    this.goTo(this.rows[target]);
  }

  /** @param {boolean} isOpening */
  turn(isOpening) {
    const { tree } = /** @type {Rank} */ (this.rank).loaded;
    const call = this.selected;
    if (call < 0 || !this.openCalls) return;
    const isOpen = this.openCalls[call] === 1 && tree.size[call] > 1;
    if (isOpening && tree.size[call] > 1 && !isOpen) this.toggle(call);
    else if (isOpening) this.move(1);
    else if (isOpen) this.toggle(call);
    else if (tree.parent[call] >= 0) this.goTo(tree.parent[call]);
  }
}
