/** The rows of a comparison for one call: what differs first, what is the same folded away. */

import { aligned, formatNumber } from "../data/numbers.js";
import { h } from "../frame/dom.js";
import { ratioChip, statusChip } from "./links.js";

/** @typedef {import("../data/judged.js").JudgedRow} JudgedRow */

const TITLES = ["slot", "status", "error", "floor", "own error", "over floor", "greatest difference", "at", "cosine", "note"];

/** @param {JudgedRow[]} rows */
export function differences(rows) {
  if (!rows.length) return null;
  const same = rows.filter((row) => row.status === "same");
  const others = rows.filter((row) => row.status !== "same");
  return h("section", { class: "card" }, h("h2", {}, "Differences"), others.length ? table(others) : null,
    same.length ? h("details", { open: !others.length }, h("summary", {}, `${same.length} the same, bit by bit`),
      h("p", { class: "mono same-slots" }, same.map((row) => row.slot || "-").join("  "))) : null);
}

/** @param {JudgedRow[]} rows */
function table(rows) {
  const column = (/** @type {string} */ name) => aligned(rows.map((row) => formatNumber(row.numbers[name], 4)));
  const [error, floor, own, most, cosine] = ["error", "floor", "own_error", "max_abs", "cosine"].map(column);
  const number = (/** @type {string} */ text) => h("td", { class: "number" }, text);
  const line = (/** @type {JudgedRow} */ row, /** @type {number} */ i) => h("tr", {},
    h("th", { scope: "row", class: "mono" }, row.slot || "-"), h("td", {}, statusChip(row.status)), number(error[i]), number(floor[i]), number(own[i]),
    h("td", { class: "number" }, ratioChip(row.numbers.ratio) ?? "-"), number(most[i]),
    h("td", { class: "mono" }, row.more.max_abs_at ? `[${row.more.max_abs_at.join(", ")}]` : "-"), number(cosine[i]), h("td", { class: "note" }, note(row)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences" },
    h("table", { class: "facts-table" }, h("thead", {}, h("tr", {}, TITLES.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows.map(line))));
}

/** @param {JudgedRow} row */
function note(row) {
  const floor = row.numbers.floor !== null && row.floor_from ? `floor by ${row.floor_from}` : "";
  const sides = ["dtype", "shape", "layout"].filter((name) => row.more[`target_${name}`] !== undefined);
  const texts = sides.map((name) => `${name} ${sideText(row.more[`target_${name}`])} against ${sideText(row.more[`baseline_${name}`])}`);
  const nonfinite = row.more.nonfinite ? `${row.more.nonfinite} elements are NaN or Inf on one side only` : "";
  return [floor, ...texts, nonfinite, row.note].filter(Boolean).join("; ");
}

/** @param {string | number[]} side */
function sideText(side) {
  return Array.isArray(side) ? `[${side.join(", ")}]` : side;
}
