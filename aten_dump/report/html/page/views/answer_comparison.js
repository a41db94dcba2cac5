/** The answer of a comparison: the first cause in words, its numbers against the floor, the way of the error. */

import { formatNumber } from "../data/numbers.js";
import { h, svg } from "../frame/dom.js";
import { namedCall, ratioChip, severity, statusChip } from "../parts/links.js";
import { inBrackets, shortSource, sourceLine } from "../parts/source_line.js";

/** @typedef {import("../frame/app.js").App} App */

/** @param {App} app */
export function comparisonAnswer(app) {
  const answer = app.comparison;
  return h("div", {},
    h("div", { class: `lead verdict-${answer.verdict}` }, h("h1", {}, answer.headline, answer.cause ? ` First cause: step ${answer.cause.step}, ${answer.cause.call}${inBrackets(shortSource(answer.cause.source))}` : ""),
      h("p", { class: "sub" }, h("span", { class: "mono" }, app.path("target")), " against ", h("span", { class: "mono" }, app.path("baseline")))),
    answer.cause ? causeCard(app, answer.cause) : null,
    answer.travel?.length ? travelCard(app, answer) : null,
    answer.others?.length ? othersCard(app, answer) : null,
    countsCard(app, answer), notesCard(answer));
}

/**
 * @param {App} app
 * @param {any} cause
 */
function causeCard(app, cause) {
  /** @type {[string, Node | string][]} */
  const facts = [
    ["op", h("span", { class: "mono" }, cause.op)], ["phase", cause.phase], ["module", h("span", { class: "mono" }, cause.module)],
    ["source", sourceLine(cause.source)],
    ["belongs to", cause.forward ? namedCall(app, cause, cause.forward) : ""],
    ["partner", cause.partner ? h("span", { class: "mono" }, cause.partner) : ""],
  ];
  const shown = facts.filter(([, fact]) => typeof fact === "string" ? fact : fact.textContent);
  return h("section", { class: "card cause-card" },
    h("h2", {}, "First cause"),
    h("p", { class: "cause-name" }, namedCall(app, cause, cause.call), cause.slot ? h("span", { class: "mono muted" }, ` ${cause.slot}`) : null),
    h("p", { class: "cause-text" }, sentence(cause.text)), cause.inputs ? h("p", {}, sentence(cause.inputs)) : null,
    h("div", { class: "two" },
      h("dl", { class: "pairs" }, shown.flatMap(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)])),
      h("div", {}, scale(cause), h("dl", { class: "pairs" }, cause.numbers.flatMap((/** @type {string[]} */ [name, text]) => [h("dt", {}, name), h("dd", { class: "mono" }, text)])))));
}

const WIDTH = 340;
const MARGIN = 18;

/**
 * The error on a logarithmic scale, against the floor.
 * @param {any} cause
 */
function scale(cause) {
  const { error, floor } = cause;
  if (typeof error !== "number" || typeof floor !== "number" || !(error > 0) || !(floor > 0)) return null;
  const low = Math.floor(Math.log10(Math.min(error, floor)) - 0.5);
  const high = Math.ceil(Math.log10(Math.max(error, floor)) + 0.5);
  const x = (/** @type {number} */ number) => MARGIN + ((Math.log10(number) - low) / (high - low)) * (WIDTH - 2 * MARGIN);
  const decades = Array.from({ length: high - low + 1 }, (_, i) => low + i);
  const every = Math.ceil(decades.length / 6);
  const label = `Error ${formatNumber(error, 3)}, floor ${formatNumber(floor, 3)}`;
  return svg("svg", { class: `scale severity-${severity(error / floor)}`, viewBox: `0 0 ${WIDTH} 56`, role: "img", "aria-label": label },
    svg("line", { class: "axis", x1: MARGIN, x2: WIDTH - MARGIN, y1: 30, y2: 30 }),
    decades.map((power) => svg("line", { class: "axis", x1: x(10 ** power), x2: x(10 ** power), y1: 27, y2: 33 })),
    decades.filter((power) => (power - low) % every === 0).map((power) => svg("text", { class: "tick", x: x(10 ** power), y: 50, "text-anchor": "middle" }, `1e${power}`)),
    svg("rect", { class: "honest", x: MARGIN, width: Math.max(0, x(floor) - MARGIN), y: 28, height: 4 }),
    svg("rect", { class: "beyond", x: Math.min(x(floor), x(error)), width: Math.abs(x(error) - x(floor)), y: 28, height: 4 }),
    svg("line", { class: "floor", x1: x(floor), x2: x(floor), y1: 20, y2: 36 }), svg("text", { x: x(floor), y: 14, "text-anchor": "middle" }, "floor"),
    svg("circle", { class: "beyond", cx: x(error), cy: 30, r: 5 }), svg("text", { x: x(error), y: 14, "text-anchor": "middle" }, Math.abs(x(error) - x(floor)) > 44 ? "error" : ""));
}

/**
 * @param {App} app
 * @param {any} answer
 */
function travelCard(app, answer) {
  const step = (/** @type {any} */ one) => one.left_out
    ? h("li", { class: "muted" }, `… ${one.left_out} more modules`)
    : h("li", { class: `severity-${severity(one.over_floor)}` }, namedCall(app, one, one.call), h("span", { class: "muted" }, ` ${[one.module, one.phase].filter(Boolean).join(", ")} `),
      h("span", { class: "travel-error" }, one.error ? `error ${one.error} ` : "", one.ratio > 1 ? ratioChip(one.ratio) : null));
  return h("section", { class: "card" }, h("h2", {}, "How the error travels"), h("ol", { class: "travel" }, answer.travel.map(step)));
}

/**
 * @param {App} app
 * @param {any} answer
 */
function othersCard(app, answer) {
  const left = answer.other_count - answer.others.length;
  return h("section", { class: "card" }, h("h2", {}, `${answer.other_count} further ${answer.other_count === 1 ? "finding stands" : "findings stand"} on their own`),
    h("ul", { class: "plain" }, answer.others.map((/** @type {any} */ one) => h("li", {}, namedCall(app, one, one.call), ` ${one.text} `, ratioChip(typeof one.ratio === "number" ? one.ratio : null))),
      left > 0 ? h("li", { class: "muted" }, `and ${left} more`) : null));
}

/**
 * @param {App} app
 * @param {any} answer
 */
function countsCard(app, answer) {
  const titles = ["step and rank", "calls", "pairs", "compared", "results", "first cause"];
  const line = (/** @type {any} */ one) => h("tr", {},
    h("td", {}, place(one)), h("td", { class: "number" }, one.calls.map((/** @type {number} */ n) => n.toLocaleString("en")).join(" / ")), h("td", { class: "number" }, one.pairs.toLocaleString("en")),
    h("td", {}, Object.entries(one.levels).map(([level, count]) => level === "none" ? `${count} without data` : `${count} by ${level}`).join(", ") || "nothing"),
    h("td", {}, Object.entries(one.statuses).map(([status, count]) => h("span", { class: "count" }, statusChip(status), ` ${count}`))),
    h("td", {}, one.cause ? namedCall(app, { step: one.target[0], rank: one.target[1] }, one.cause) : "none"));
  return h("section", { class: "card" }, h("h2", {}, "What was compared"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What was compared" },
      h("table", { class: "facts-table" }, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, answer.ranks.map(line)))));
}

/** @param {any} one */
function place(one) {
  const [target, baseline] = [one.target, one.baseline];
  const both = (/** @type {number} */ a, /** @type {number} */ b) => a === b ? String(a) : `${a} against ${b}`;
  if (one.together) return `step ${both(target[0], baseline[0])}, ${one.together[0]} ranks against ${one.together[1]}`;
  return `step ${both(target[0], baseline[0])}, rank ${both(target[1], baseline[1])}`;
}

/** @param {any} answer */
function notesCard(answer) {
  const notes = answer.notes;
  return notes.length ? h("section", { class: "card" }, h("h2", {}, "Notes"), h("ul", {}, notes.map((/** @type {string} */ note) => h("li", {}, note)))) : null;
}

/** @param {string} clause */
function sentence(clause) {
  const text = clause.charAt(0).toUpperCase() + clause.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
