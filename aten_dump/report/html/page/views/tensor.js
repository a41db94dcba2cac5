/** A tensor, where a server has its bytes: a slice as heat map, its histogram, its elements; and the difference to its partner. */

import { currentPlace } from "../frame/address.js";
import { h, replace } from "../frame/dom.js";
import { onThemeChange } from "../frame/theme.js";
import { bars } from "../parts/bars.js";
import { heatMap } from "../parts/heat_map.js";
import { callLink } from "../parts/links.js";
import { elementTable, SliceChoice, SHOWN } from "../parts/slice_choice.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */
/** @typedef {import("../data/rank.js").Rank} Rank */
/** @typedef {import("../data/rank.js").Value} Value */
/** @typedef {import("../data/source.js").ServerSource} ServerSource */
/** @typedef {{rank: Rank, call: number, slot: string, value: Value, other: string}} Found */

/** @implements {View} */
export class TensorView {
  /**
   * @param {App} app
   * @param {ServerSource} source
   */
  constructor(app, source) {
    this.app = app;
    this.source = source;
    this.element = h("section", { class: "view tensor-view", "aria-label": "Tensor" });
    this.shown = "";
    onThemeChange(() => this.again());
  }

  forget() {
    this.shown = "";
  }

  /** @param {Place} place */
  async show(place) {
    const key = JSON.stringify(place);
    if (this.shown === key) return;
    this.shown = key;
    const found = await this.find(place);
    if (this.shown !== key) return;
    if (!found) {
      this.shown = "";
      return replace(this.element, h("p", { class: "empty" }, "No tensor is selected: open a call, and choose one of its tensors."));
    }
    const choice = new SliceChoice(place, found.value.signature.shape, found.other !== "");
    const query = { value: `${found.rank.key}/${found.value.id}`, ...(found.other ? { other: found.other } : {}), ...choice.query };
    replace(this.element, this.head(found), choice.element);
    const section = await this.source.tensor({ ...query, part: "map" });
    if (this.shown !== key) return;
    const elements = h("section", { class: "card" });
    const look = async (/** @type {number} */ row, /** @type {number} */ column) => {
      const { json } = await this.source.tensor({ ...query, part: "elements", row: String(row), column: String(column) });
      replace(elements, h("h2", {}, "Elements"), elementTable(json, look));
    };
    replace(this.element, this.head(found), choice.element, h("div", { class: "map-and-bars" }, this.map(section, choice, look), this.histogram(section)), elements);
    await look(0, 0);
  }

  /**
   * @param {Place} place
   * @returns {Promise<Found | null>}
   */
  async find(place) {
    const rank = await this.app.rankAt(place);
    const call = rank && place.call ? rank.loaded.calls.find(place.call) : -1;
    if (!rank || call < 0) return null;
    const args = await rank.arguments(call);
    const slots = args.template.slots;
    const at = Math.max(slots.indexOf(place.value), 0);
    if (!slots.length) return null;
    return { rank, call, slot: slots[at], value: args.values[at], other: await this.partner(rank, call, slots[at]) };
  }

  /**
   * @param {Rank} rank
   * @param {number} call
   * @param {string} slot
   * @returns {Promise<string>} "side/step/rank/id" of the partner, "" for none
   */
  async partner(rank, call, slot) {
    const other = this.app.partnerOf(rank);
    const partner = rank.loaded.judged?.partner[call] ?? -1;
    if (!other || partner < 0) return "";
    const args = await (await this.app.loaded(other)).arguments(partner);
    const at = args.template.slots.indexOf(slot);
    return at < 0 ? "" : `${other.key}/${args.values[at].id}`;
  }

  /** @param {Found} found */
  head({ rank, call, slot, value }) {
    const name = rank.loaded.calls.name(call);
    return h("div", { class: "call-head" }, h("p", { class: "trail" }, `${this.app.comparison ? `${rank.side}, ` : ""}step ${rank.step}, rank ${rank.rank} › `, callLink(this.app, rank, name)),
      h("h1", { class: "mono" }, slot), h("p", { class: "facts" }, h("span", { class: "fact" }, value.signature.text), h("span", { class: "fact" }, value.signature.device)));
  }

  /**
   * @param {import("../data/columns.js").Section} section
   * @param {SliceChoice} choice
   * @param {(row: number, column: number) => void} look
   */
  map(section, choice, look) {
    const { cells, shape, limit } = section.json;
    const told = h("p", { class: "told mono", role: "status" });
    const beside = this.element.clientWidth > 900 ? 400 : 0;
    const width = Math.max(Math.min(this.element.clientWidth, 1280) - 90 - beside, 240);
    const label = `${SHOWN[choice.show]}: ${shape[0]} rows, ${shape[1]} columns, colours from -${limit} to ${limit}`;
    const tell = (/** @type {number} */ row, /** @type {number} */ column, /** @type {[number, number]} */ end) => replace(told, `row ${span(row, end[0])}, column ${span(column, end[1])}`);
    const canvas = heatMap({ codes: section.integers("code"), cells, shape, label }, width, look, tell);
    const isReduced = cells[0] < shape[0] || cells[1] < shape[1];
    return h("section", { class: "card" }, h("h2", {}, SHOWN[choice.show]),
      shape[0] * shape[1] ? h("div", { class: "scroll" }, canvas) : h("p", { class: "muted" }, "It has no elements."),
      h("div", { class: "map-legend mono" }, h("span", {}, choice.show === "ulp" ? "0" : `-${limit}`), h("span", { class: `map-scale ${choice.show === "ulp" ? "upper" : ""}` }), h("span", {}, limit), h("span", { class: "muted" }, isReduced ? "of each cell the element furthest from 0" : "")), told);
  }

  /** @param {import("../data/columns.js").Section} section */
  histogram(section) {
    const counts = section.integers("bar");
    const { facts, low, high } = section.json;
    return h("section", { class: "card" }, counts.length > 1 ? [h("h2", {}, "Histogram"), bars(counts, low, high)] : h("h2", {}, "Numbers"),
      h("dl", { class: "mono slice-facts" }, Object.entries(facts).map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", { class: ["NaN", "+Inf", "-Inf"].includes(name) ? "bad" : "" }, String(text))))));
  }

  again() {
    this.shown = "";
    if (this.element.isConnected) this.show(currentPlace());
  }
}

/**
 * @param {number} first
 * @param {number} last
 */
function span(first, last) {
  return last > first ? `${first} to ${last}` : String(first);
}
