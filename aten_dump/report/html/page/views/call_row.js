/** One row of the table of calls: made once, filled again as the table scrolls. */

import { aligned, formatNumber } from "../data/numbers.js";
import { h } from "../frame/dom.js";

export const ROW_HEIGHT = 26;
/** @type {Record<string, string>} */
export const COLUMNS = {
  name: "Call", op: "Op", module: "Module", phase: "Phase", result: "Result", error: "Error", statistic: "", time: "Time",
};
const INDENT = 14;
const MOST_INDENTED = 12;

/** @type {WeakMap<HTMLElement, CallRow>} */
const rows = new WeakMap();

export class CallRow {
  constructor() {
    this.call = -1;
    this.twisty = h("span", { class: "twisty", "aria-hidden": "true" });
    /** @type {Record<string, HTMLElement>} */
    this.cells = { "name-text": h("span", { class: "name-text" }) };
    this.element = h("div", { class: "row", role: "row" });
    for (const name of Object.keys(COLUMNS)) {
      const cell = h("span", { role: "gridcell", class: `cell ${name}` });
      if (name === "name") cell.append(this.twisty, this.cells["name-text"]);
      this.cells[name] = cell;
      this.element.append(cell);
    }
    rows.set(this.element, this);
  }

  /** @param {HTMLElement} element */
  static of(element) {
    return /** @type {CallRow} */ (rows.get(element));
  }

  /** @param {{index: number, call: number, isSelected: boolean, isMatch: boolean, depth: number}} facts */
  place({ index, call, isSelected, isMatch, depth }) {
    this.call = call;
    this.element.id = `row-${call}`;
    this.element.setAttribute("aria-rowindex", String(index + 2));
    this.element.setAttribute("aria-level", String(depth + 1));
    this.element.setAttribute("aria-selected", String(isSelected));
    this.element.classList.toggle("outer", !isMatch);
    this.cells.name.style.paddingLeft = `${Math.min(depth, MOST_INDENTED) * INDENT}px`;
  }

  /**
   * @param {boolean} hasChildren
   * @param {boolean} isOpen
   */
  twist(hasChildren, isOpen) {
    this.twisty.textContent = hasChildren ? (isOpen ? "▾" : "▸") : "";
    if (hasChildren) this.element.setAttribute("aria-expanded", String(isOpen));
    else this.element.removeAttribute("aria-expanded");
  }

  /**
   * @param {string} name
   * @param {string} text
   */
  text(name, text) {
    const cell = this.cells[name];
    if (cell.textContent === text) return;
    cell.textContent = text;
    cell.title = text.length > 16 ? text : "";
  }

  /**
   * @param {string} text
   * @param {boolean} isBad there are NaN or infinities
   */
  number(text, isBad) {
    this.text("statistic", text && padded(text));
    this.cells.statistic.classList.toggle("bad", isBad);
  }

  /**
   * @param {string} status
   * @param {number} error NaN where nothing was measured
   * @param {number} severity
   */
  error(status, error, severity) {
    this.text("error", Number.isNaN(error) ? status : aligned([formatNumber(error, 3), ...SHORT_SAMPLES])[0]);
    this.cells.error.className = `cell error severity-${severity}`;
    this.cells.error.title = status;
  }
}

const SHORT_SAMPLES = ["00", "0.00e-00"];
const SAMPLES = ["-000000", "0.0000000e+00"];

/** @param {string} text a number, as wide as any other and with its point at the same place */
function padded(text) {
  return aligned([text, ...SAMPLES])[0];
}
