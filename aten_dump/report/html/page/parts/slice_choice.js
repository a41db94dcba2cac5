/** The controls of a slice: which dimensions are rows and columns, where in the others, and what is shown. */

import { go } from "../frame/address.js";
import { h } from "../frame/dom.js";

/** @typedef {import("../frame/address.js").Place} Place */

/** @type {Record<string, string>} */
export const SHOWN = { tensor: "This tensor", other: "Its partner", difference: "Difference", ulp: "Units of the last place" };
const SHARES = { "1": "greatest", "0.99": "99 of 100", "0.9": "9 of 10" };

export class SliceChoice {
  /**
   * @param {Place} place
   * @param {number[]} shape
   * @param {boolean} hasPartner
   */
  constructor(place, shape, hasPartner) {
    this.shape = shape;
    this.show = !hasPartner ? "tensor" : place.show in SHOWN ? place.show : "difference";
    this.share = place.share in SHARES ? place.share : "1";
    const last = shape.length - 1;
    const dims = place.dims.split(",").filter(Boolean).map(Number).filter((dim) => dim <= last);
    this.dims = dims.length === 2 && dims[0] !== dims[1] ? dims : shape.length > 1 ? [last - 1, last] : [];
    const at = place.at.split(",").filter(Boolean).map(Number);
    this.at = shape.map((size, dim) => Math.min(Math.max(Math.floor(at[dim]) || 0, 0), Math.max(size - 1, 0)));
    this.element = h("div", { class: "slice-bar" }, this.shownChoice(hasPartner), this.dimChoices(), this.indexChoices(), this.shareChoice());
  }

  /** What the server is asked for. */
  get query() {
    return { dims: this.dims.join(","), at: this.at.join(","), show: this.show, share: this.share };
  }

  /** @param {boolean} hasPartner */
  shownChoice(hasPartner) {
    return hasPartner ? choice("Show ", SHOWN, this.show, (show) => go({ show })) : null;
  }

  dimChoices() {
    if (this.shape.length < 3) return null;
    const names = Object.fromEntries(this.shape.map((size, dim) => [String(dim), `dimension ${dim} (${size})`]));
    const pick = (/** @type {0 | 1} */ side) => (/** @type {string} */ text) => {
      const dims = [...this.dims];
      if (dims[1 - side] === Number(text)) dims[1 - side] = dims[side];
      dims[side] = Number(text);
      go({ dims: dims.join(",") });
    };
    return [choice("Rows ", names, String(this.dims[0]), pick(0)), choice("Columns ", names, String(this.dims[1]), pick(1))];
  }

  indexChoices() {
    return this.shape.flatMap((size, dim) => {
      if (this.dims.includes(dim) || this.shape.length < 3) return [];
      const changed = (/** @type {Event} */ event) => {
        const at = [...this.at];
        at[dim] = Number(/** @type {HTMLInputElement} */ (event.target).value);
        go({ at: at.join(",") });
      };
      return [h("label", {}, `Dimension ${dim} at `, h("input", { type: "number", min: 0, max: Math.max(size - 1, 0), value: this.at[dim], onchange: changed })), h("span", { class: "muted" }, `of ${size}`)];
    });
  }

  shareChoice() {
    return choice("Colours up to ", SHARES, this.share, (share) => go({ share }));
  }
}

/**
 * @param {string} title
 * @param {Record<string, string>} names by value
 * @param {string} chosen
 * @param {(value: string) => void} act
 */
function choice(title, names, chosen, act) {
  const changed = (/** @type {Event} */ event) => act(/** @type {HTMLSelectElement} */ (event.target).value);
  return h("label", {}, title, h("select", { onchange: changed }, Object.entries(names).map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}

/**
 * @param {Record<string, any>} json of the elements
 * @param {(row: number, column: number) => void} look
 */
export function elementTable({ shape, from: [row, column], rows }, look) {
  const width = rows[0]?.length ?? 0;
  const columns = Array.from({ length: width }, (_, i) => column + i);
  const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {number} */ toRow, /** @type {number} */ toColumn) => h("button", {
    type: "button", class: "quiet", "aria-label": label, disabled: toRow < 0 || toColumn < 0 || toRow >= shape[0] || toColumn >= shape[1], onclick: () => look(toRow, toColumn),
  }, text);
  const back = (/** @type {number} */ at, /** @type {number} */ by) => at > 0 ? Math.max(at - by, 0) : -1;
  return [
    h("div", { class: "slice-bar" }, h("span", { class: "muted" }, rows.length ? `rows ${row} to ${row + rows.length - 1} of ${shape[0]}, columns ${column} to ${column + width - 1} of ${shape[1]}` : "none"),
      button("←", "Columns before", row, back(column, 12)), button("→", "Columns after", row, column + 12), button("↑", "Rows before", back(row, 24), column), button("↓", "Rows after", row + 24, column)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Elements" }, h("table", { class: "facts-table elements" },
      h("thead", {}, h("tr", {}, h("th", {}, h("span", { class: "unseen" }, "row")), columns.map((at) => h("th", { scope: "col", class: "number" }, at)))),
      h("tbody", {}, rows.map((/** @type {string[]} */ texts, /** @type {number} */ i) => h("tr", {}, h("th", { scope: "row", class: "number muted" }, row + i),
        texts.map((text) => h("td", { class: `number ${/nan|inf/.test(text) ? "bad" : ""}` }, text))))))),
  ];
}
