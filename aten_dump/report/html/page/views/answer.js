/** The answer: of a comparison the first cause, of one dump what ran and what to know about it. */

import { formatBytes, formatCount, formatNumber } from "../data/numbers.js";
import { h, replace } from "../frame/dom.js";
import { namedCall } from "../parts/links.js";
import { inBrackets, shortSource, sourceLine } from "../parts/source_line.js";
import { comparisonAnswer } from "./answer_comparison.js";
import { readFacts, worthReading } from "./early_facts.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */

const FIRST_SICK = 3; // steps and ranks whose NaN are shown at once
const MOST_ROWS = 16; // of a table that does not scroll
const MOST_LISTED = 1000; // steps and ranks in a table
const MOST_LACKING = 8; // steps and ranks that are not whole, shown one by one

/** @implements {View} */
export class AnswerView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.element = h("section", { class: "view answer-view", "aria-label": "Answer" });
  }

  show() {
    if (this.element.firstChild) return;
    this.draw();
    if (this.app.source.isServed) this.read(false);
  }

  renew() {
    replace(this.element);
  }

  /**
   * Ask the server for what the first view lacks.
   * @param {boolean} all
   */
  async read(all) {
    await readFacts(this.app, worthReading(this.app, all), all, () => this.draw());
  }

  draw() {
    const lead = this.app.comparison ? comparisonAnswer(this.app) : this.dumpAnswer();
    replace(this.element, this.notWhole(), lead, this.nonfinite(), this.steps(), this.unseen(), h("div", { class: "two" }, this.run(), this.costs()), this.lossScale());
  }

  get stepRanks() {
    return this.app.target.step_ranks;
  }

  /** What is damaged, interrupted or lost comes first: of what is not whole nothing is said to be right. */
  notWhole() {
    /** @type {[string, any][]} */
    const sides = Object.entries(this.app.outline.sides);
    const lines = sides.flatMap(([name, side]) => side.step_ranks.filter((/** @type {any} */ one) => one.state && one.state !== "complete")
      .map((/** @type {any} */ one) => `${name}, step ${one.step} rank ${one.rank} is ${one.state}: ${one.missing.join("; ")}`));
    lines.push(...sides.flatMap(([, side]) => side.problems));
    if (!lines.length) return null;
    const shown = lines.slice(0, MOST_LACKING);
    if (lines.length > shown.length) shown.push(`and ${lines.length - shown.length} more`);
    return h("section", { class: "card", role: "alert" }, h("h2", {}, "Not whole"), h("ul", {}, shown.map((line) => h("li", { class: "bad" }, line))));
  }

  dumpAnswer() {
    const calls = this.stepRanks.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.calls, 0);
    const steps = new Set(this.stepRanks.map((/** @type {any} */ one) => one.step)).size;
    const ranks = new Set(this.stepRanks.map((/** @type {any} */ one) => one.rank)).size;
    const size = `${formatCount(steps, "step")} of ${formatCount(ranks, "rank")}, ${formatCount(calls, "call")}.`;
    return h("div", { class: "lead" }, h("h1", {}, this.finding() || "What was recorded."), h("p", { class: "sub" }, size));
  }

  /** The finding in one line: the first NaN with its place, or no NaN if all was searched; else "". */
  finding() {
    const sick = this.stepRanks.filter((/** @type {any} */ one) => one.nonfinite?.first);
    const first = sick.sort((/** @type {any} */ a, /** @type {any} */ b) => a.step - b.step || lateness(a) - lateness(b))[0];
    if (first) {
      const { call, kind, slots, source } = first.nonfinite.first;
      const what = slots.some((/** @type {any[]} */ [, , , nan]) => nan) ? "NaN" : "Inf";
      const place = `step ${first.step}${this.stepRanks.some((/** @type {any} */ one) => one.rank !== first.rank) ? `, rank ${first.rank}` : ""}`;
      return `First ${what}: ${place}, ${kind === "outside" ? "created before this step, read by " : ""}${call}${inBrackets(shortSource(source))}`;
    }
    const isKnown = (/** @type {any} */ one) => one.complete && !one.missing.length && one.nonfinite && !one.nonfinite.unknown && !one.nonfinite.could_not_be_judged;
    if (!this.stepRanks.length || !this.stepRanks.every(isKnown)) return "";
    const some = (/** @type {string} */ name) => this.stepRanks.some((/** @type {any} */ one) => one.nonfinite.counts[name]);
    const besides = [some("masks") && "masks", some("scaled overflows") && "gradients that overflowed under the loss scale"].filter(Boolean);
    return besides.length ? `No NaN or Inf beside ${besides.join(" and ")}.` : "No NaN or Inf.";
  }

  nonfinite() {
    const found = this.stepRanks.filter((/** @type {any} */ one) => one.nonfinite?.first || one.nonfinite?.counts?.["scaled overflows"]);
    if (!found.length) return null;
    return h("section", { class: "card" }, h("h2", {}, "NaN and Inf"),
      found.slice(0, FIRST_SICK).map((/** @type {any} */ one) => this.nonfiniteOf(one)),
      found.length > FIRST_SICK ? h("details", {}, h("summary", {}, `${found.length - FIRST_SICK} more steps and ranks`), found.slice(FIRST_SICK).map((/** @type {any} */ one) => this.nonfiniteOf(one))) : null);
  }

  /** @param {any} one step-rank */
  nonfiniteOf(one) {
    const events = one.nonfinite.producers.length ? one.nonfinite.producers : [one.nonfinite.first].filter(Boolean);
    const counts = Object.entries(one.nonfinite.counts).filter(([, count]) => count).map(([name, count]) => `${count} ${count === 1 ? name.replace(/s$/, "") : name}`);
    return h("div", { class: "cause" },
      h("p", { class: "muted" }, `step ${one.step}, rank ${one.rank}: ${counts.join(", ")} of ${formatCount(one.nonfinite.calls, "call")}`),
      h("ol", { class: "events" }, events.map((/** @type {any} */ event) => h("li", {},
        namedCall(this.app, one, event.call), " ", h("span", { class: "bad mono" }, event.slots.map(slotText).join("; ")),
        event.why ? h("div", {}, event.why) : null,
        h("div", { class: "muted mono" }, event.module, event.module && event.source ? " · " : "", sourceLine(event.source))))));
  }

  steps() {
    const titles = ["step", "rank", "state", "calls", "values", "index", "tensors", "kept for backward"];
    const rows = this.stepRanks.slice(0, MOST_LISTED).map((/** @type {any} */ one) => h("tr", {},
      h("td", { class: "number" }, one.step), h("td", { class: "number" }, one.rank),
      h("td", {}, stateOf(one), one.nonfinite?.first ? h("span", { class: "bad" }, ", NaN or Inf") : null, one.shown || isWritten(one) ? null : h("span", { class: "muted" }, ", not shown call by call")),
      h("td", { class: "number" }, one.calls.toLocaleString("en")), h("td", { class: "number" }, one.values.toLocaleString("en")),
      h("td", { class: "number" }, formatBytes(one.index_bytes)), h("td", { class: "number" }, formatBytes(one.shard_bytes)),
      h("td", { class: "number" }, one.saved_bytes === null ? "" : formatBytes(one.saved_bytes))));
    return h("section", { class: "card" }, h("h2", {}, "Steps and ranks"),
      rows.length ? h("div", { class: `scroll ${rows.length > MOST_ROWS ? "tall" : ""}`, tabindex: "0", role: "region", "aria-label": "Steps and ranks" },
        h("table", { class: "facts-table" }, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows)),
        this.stepRanks.length > rows.length ? h("p", { class: "muted" }, `and ${this.stepRanks.length - rows.length} more`) : null)
        : h("p", {}, "No step was recorded."));
  }

  unseen() {
    /** @type {Map<string, string[]>} */
    const found = new Map();
    for (const one of this.stepRanks) {
      const texts = [...one.missing, ...one.notes.map((/** @type {any} */ note) => note.message + (note.count > 1 ? ` (${note.count} times)` : ""))];
      for (const text of texts) {
        const where = found.get(text) ?? [];
        where.push(`step ${one.step} rank ${one.rank}`);
        found.set(text, where);
      }
    }
    return h("section", { class: "card" }, h("h2", {}, "What was not seen"),
      found.size ? h("ul", {}, [...found].map(([text, where]) => h("li", {}, text, h("span", { class: "muted" }, ` ${where[0]}${where.length > 1 ? ` and ${where.length - 1} more` : ""}`))))
        : h("p", {}, this.early ? "Not all steps have been looked at yet." : "Nothing is known to be missing."), this.lookButton());
  }

  /** How many steps and ranks a server has not read yet. */
  get early() {
    return this.stepRanks.filter((/** @type {any} */ one) => one.shown && (one.early || !one.nonfinite)).length;
  }

  lookButton() {
    if (!this.app.source.isServed || !this.early) return null;
    const button = h("button", { type: "button", onclick: () => {
      button.setAttribute("disabled", "");
      this.read(true);
    } }, `Look at all ${formatCount(this.stepRanks.length, "step-rank")}`);
    return h("p", { class: "look-all" }, button);
  }

  run() {
    const run = this.app.target.run;
    const config = this.stepRanks[0]?.config ?? {};
    /** @type {[string, string][]} */
    const rows = [["dump", this.app.path("target")], ...Object.entries({ ...run, ...config }).map(([name, fact]) => /** @type {[string, string]} */ ([name.replaceAll("_", " "), factText(fact)]))];
    const shown = rows.filter(([, text]) => text !== "");
    return h("section", { class: "card" }, h("h2", {}, "Run"), h("dl", { class: "pairs" }, shown.flatMap(([name, text]) => [h("dt", {}, name), h("dd", { class: "mono" }, text)])));
  }

  costs() {
    /** @type {Record<string, number>} */
    const sums = {};
    for (const one of this.stepRanks) for (const [name, seconds] of Object.entries(one.seconds)) sums[name] = (sums[name] ?? 0) + Number(seconds);
    const rows = Object.entries(sums).filter(([, seconds]) => seconds > 0);
    return h("section", { class: "card" }, h("h2", {}, "What recording cost"),
      rows.length ? h("table", { class: "facts-table" }, h("tbody", {}, rows.map(([name, seconds]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, `${seconds.toFixed(3)} s`)))))
        : h("p", { class: "muted" }, "Not known: no step was ended."));
  }

  lossScale() {
    const rows = this.stepRanks.flatMap((/** @type {any} */ one) => one.loss_scales.map((/** @type {any} */ update) => h("tr", {},
      h("td", { class: "number" }, one.step), h("td", { class: "number" }, one.rank), h("td", {}, namedCall(this.app, one, update.call)),
      h("td", { class: "number" }, formatNumber(update.scale)), h("td", {}, update.found_inf ? h("span", { class: "bad" }, "skipped") : update.found_inf === false ? "taken" : "?"),
      h("td", { class: "number" }, formatNumber(update.next_scale)))));
    if (!rows.length) return null;
    const titles = ["step", "rank", "update", "scale", "optimizer's step", "next scale"];
    return h("section", { class: "card" }, h("h2", {}, "Loss scale"),
      h("table", { class: "facts-table" }, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows)));
  }
}

/**
 * Of step-ranks of one step, one that made NaN goes before one that was given it, and both before a collective.
 * @param {any} one step-rank
 */
function lateness({ nonfinite: { first } }) {
  return /^_?c10d/.test(first.op) ? 2 : first.kind === "outside" ? 1 : 0;
}

/** @param {any} one step-rank */
function isWritten(one) {
  return one.early && !one.complete && !one.shown && !one.missing.length;
}

/** @param {any} one step-rank */
function stateOf(one) {
  if (isWritten(one)) return "being written";
  if (one.state === "complete") return one.state;
  if (one.early && one.complete) return "not read yet";
  return h("span", { class: "bad" }, one.state ?? (one.early && one.missing.length ? "cannot be read" : "interrupted"));
}

/** @param {any[]} slot name, dtype, count, NaN, +Inf, -Inf */
function slotText([name, dtype, count, nan, positive, negative]) {
  const counts = [[nan, "NaN"], [positive, "+Inf"], [negative, "-Inf"]].filter(([n]) => n).map(([n, what]) => `${n} ${what}`);
  return `${name}: ${counts.join(", ")} of ${count} ${dtype}`;
}

/**
 * @param {any} fact
 * @returns {string}
 */
function factText(fact) {
  if (fact === null || fact === undefined) return "";
  if (Array.isArray(fact)) return fact.map(factText).join(" ");
  if (typeof fact === "object") return Object.entries(fact).map(([name, value]) => `${name} ${factText(value)}`).join(", ");
  return String(fact);
}
