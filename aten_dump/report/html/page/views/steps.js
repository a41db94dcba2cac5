/** Statistics over the recorded steps: gradient norms, the loss, the loss scale, NaN counts, and any value. */

import { StepSeries } from "../data/steps.js";
import { go } from "../frame/address.js";
import { h, replace } from "../frame/dom.js";
import { onThemeChange } from "../frame/theme.js";
import { lineChart, lineTable } from "../parts/line_chart.js";
import { namedCall } from "../parts/links.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */
/** @typedef {import("../parts/line_chart.js").Line} Line */

const LOSS = "loss";
const NORMS = "gradient norm per module";
const LOSS_SCALE = "loss scale";
const NONFINITE = "values with NaN or Inf";
const MOST_LINES = 12;
const MOST_SICK = 8; // steps that are named

/** @implements {View} */
export class StepsView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.element = h("section", { class: "view steps-view", "aria-label": "Over steps" });
    /** @type {StepSeries | null} */
    this.series = null;
    this.statistic = "l2norm";
    this.isLog = false;
    this.remove = () => {};
    this.shown = "";
    onThemeChange(() => this.redraw());
  }

  renew() {
    this.series = null;
    this.chart = undefined;
    this.shown = "";
  }

  forget() {
    this.shown = "";
  }

  /** @param {Place} place */
  async show(place) {
    const section = this.series ? null : await this.app.source.optional("steps");
    if (section) this.series = new StepSeries(section);
    if (!this.series) return replace(this.element, h("p", { class: "empty" }, "No statistics were recorded: there is nothing to follow over steps."));
    if (!this.chart) this.build(this.series);
    const value = place.value || this.first(this.series);
    if (this.shown === value && this.element.isConnected && this.chart?.firstChild) return;
    this.shown = value;
    await this.draw(value);
  }

  /** @param {StepSeries} series */
  first(series) {
    return this.special(series)[0] ?? series.series[0][0];
  }

  /** @param {StepSeries} series */
  build(series) {
    this.chart = h("div", { class: "chart" });
    this.title = h("h2", {});
    this.numbers = h("div", {});
    this.sick = h("p", { class: "sick-steps" });
    this.choose = /** @type {HTMLInputElement} */ (h("input", { type: "text", list: "series", "aria-label": "Value", class: "series-input mono", onchange: () => go({ value: this.choose?.value ?? "" }) }));
    const options = this.special(series).concat(series.series.map(([name]) => name)).slice(0, 2000);
    this.statistics = h("select", { "aria-label": "Statistic", onchange: (/** @type {Event} */ event) => {
      this.statistic = /** @type {HTMLSelectElement} */ (event.target).value;
      this.redraw();
    } }, series.statistics.map((name) => h("option", { value: name, selected: name === this.statistic }, name)));
    const log = h("input", { type: "checkbox", onchange: (/** @type {Event} */ event) => {
      this.isLog = /** @type {HTMLInputElement} */ (event.target).checked;
      this.redraw();
    } });
    replace(this.element, h("h1", { class: "unseen" }, "Over steps"), h("div", { class: "strip-bar" }, h("label", {}, "Value ", this.choose), h("datalist", { id: "series" }, options.map((name) => h("option", { value: name }))),
      h("label", {}, "Statistic ", this.statistics), h("label", {}, log, " logarithmic")),
      h("section", { class: "card" }, this.title, this.chart, this.sick, this.numbers), this.lists(series));
  }

  /** @param {StepSeries} series */
  special(series) {
    const found = series.places.has(LOSS) ? [LOSS] : [];
    if (series.names("gradients").length) found.push(NORMS);
    const ranks = this.app.target.step_ranks;
    if (ranks.some((/** @type {any} */ one) => one.loss_scales.length)) found.push(LOSS_SCALE);
    if (ranks.some((/** @type {any} */ one) => one.nonfinite_values !== null)) found.push(NONFINITE);
    return found;
  }

  /** @param {StepSeries} series */
  lists(series) {
    const link = (/** @type {string} */ name) => h("li", {}, h("a", { class: "call-link", href: `#view=steps&value=${encodeURIComponent(name)}` }, name));
    const group = (/** @type {string} */ name) => h("details", { class: "card" }, h("summary", {}, `${name} (${series.names(name).length})`), h("ul", { class: "plain series-list" }, series.names(name).slice(0, 500).map(link)));
    return h("div", {}, h("p", { class: "quick" }, this.special(series).map((name) => h("a", { href: `#view=steps&value=${encodeURIComponent(name)}` }, name))), series.groups.map(group));
  }

  redraw() {
    if (this.shown && this.element.isConnected) this.draw(this.shown);
  }

  /** @param {string} value */
  async draw(value) {
    const series = /** @type {StepSeries} */ (this.series);
    const lines = await this.lines(series, value);
    if (!this.chart || !this.title || !this.numbers || !this.choose || !this.sick || this.shown !== value) return;
    this.choose.value = value;
    this.remove();
    replace(this.chart);
    const isPlain = [LOSS, NORMS, LOSS_SCALE, NONFINITE].includes(value);
    const label = isPlain ? value : `${this.statistic} of ${value}`;
    const marked = this.sickSteps(series, lines);
    this.statistics?.toggleAttribute("disabled", isPlain);
    replace(this.title, label, lines.length ? "" : ": nothing was recorded under this name");
    this.remove = lines.length ? await lineChart(this.chart, series.steps, lines, { logarithmic: this.isLog, label, marked: new Map([...marked].map(([step, { what }]) => [step, what])) }) : () => {};
    this.tellSick(marked);
    replace(this.numbers, lines.length ? lineTable(series.steps, lines) : null);
  }

  /**
   * @param {StepSeries} series
   * @param {string} value
   * @returns {Promise<Line[]>}
   */
  async lines(series, value) {
    if (value === NORMS) return this.norms(series);
    if (value === LOSS_SCALE) return this.outlined(series, (one) => one.loss_scales.at(-1)?.scale ?? null);
    if (value === NONFINITE) return this.outlined(series, (one) => one.nonfinite_values);
    const statistic = value === LOSS && series.statistics.includes("mean") ? "mean" : this.statistic; // a loss may be negative
    const name = (/** @type {number} */ rank) => series.ranks.length > 1 ? `rank ${rank}` : value;
    const lines = series.places.has(value)
      ? series.ranks.map((rank) => ({ name: name(rank), numbers: series.line(value, rank, statistic) }))
      : await Promise.all(series.ranks.map(async (rank) => ({ name: name(rank), numbers: await this.followed(series, value, rank) })));
    return lines.filter(({ numbers }) => numbers.some((number) => number !== null)).slice(0, MOST_LINES * 4);
  }

  /**
   * Return the steps in which NaN or Inf was made, or in which a line is not finite, each with who made it first if that is known.
   * @param {StepSeries} series
   * @param {Line[]} lines
   * @returns {Map<number, {what: string, one: any}>} NaN or Inf, and the step-rank of the outline, by step
   */
  sickSteps(series, lines) {
    /** @type {Map<number, {what: string, one: any}>} */
    const found = new Map();
    const firsts = this.byPlace((one) => one.nonfinite?.first ? [one.step] : []);
    series.steps.forEach((step, i) => {
      const one = firsts.get(`${step}`);
      const bad = lines.map(({ numbers }) => numbers[i]).filter((number) => number !== null && !Number.isFinite(number));
      const isNan = bad.some(Number.isNaN) || one?.nonfinite.first.slots.some((/** @type {any[]} */ [, , , nan]) => nan);
      if (one || bad.length) found.set(step, { what: isNan ? "NaN" : "Inf", one });
    });
    return found;
  }

  /** @param {Map<number, {what: string, one: any}>} marked */
  tellSick(marked) {
    if (!this.sick) return;
    const steps = [...marked].slice(0, MOST_SICK).map(([step, { one }], i) => h("span", {}, `${i ? ", " : ""}step ${step}`, one ? [": ", namedCall(this.app, one, one.nonfinite.first.call)] : ""));
    const more = marked.size - steps.length;
    replace(this.sick, marked.size ? [h("span", { class: "swatch swatch-sick", "aria-hidden": "true" }), "NaN or Inf in ", ...steps, more > 0 ? ` and ${more} more` : ""] : null);
  }

  /** @param {StepSeries} series */
  norms(series) {
    const deep = (/** @type {number} */ depth) => series.ranks.flatMap((rank) => [...series.moduleNorms(rank, depth)].map(([module, numbers]) => ({ name: series.ranks.length > 1 ? `${module}, rank ${rank}` : module, numbers })));
    let lines = deep(1);
    for (let depth = 2; depth <= 4; depth++) {
      const more = deep(depth);
      if (more.length > MOST_LINES) break;
      lines = more;
    }
    return lines;
  }

  /**
   * @param {StepSeries} series
   * @param {(one: any) => number | null} numberOf of the outline of a step and rank
   * @returns {Line[]}
   */
  outlined(series, numberOf) {
    const places = this.byPlace((one) => [one.step, one.rank]);
    return series.ranks.map((rank) => ({ name: `rank ${rank}`, numbers: series.steps.map((step) => {
      const one = places.get(`${step},${rank}`);
      return one ? numberOf(one) : null;
    }) }));
  }

  /**
   * Return the steps and ranks of the outline by a key, the first of equal ones.
   * @param {(one: any) => number[]} keyOf none for one that is left out
   * @returns {Map<string, any>}
   */
  byPlace(keyOf) {
    /** @type {Map<string, any>} */
    const found = new Map();
    for (const one of this.app.target.step_ranks) {
      const key = keyOf(one).join(",");
      if (key && !found.has(key)) found.set(key, one);
    }
    return found;
  }

  /**
   * Follow a slot of a call over the steps that the report shows call by call.
   * @param {StepSeries} series
   * @param {string} value "Aten.addmm.3.forward.output.0"
   * @param {number} rank
   */
  async followed(series, value, rank) {
    const match = value.match(/^(.+?)\.((?:input|output|mutated)\..+)$/);
    return Promise.all(series.steps.map(async (step) => {
      const found = this.app.ranks.get(`target/${step}/${rank}`);
      if (!found || !match) return null;
      const { calls } = (await this.app.loaded(found)).loaded;
      const call = calls.find(match[1]);
      if (call < 0) return null;
      const args = await found.arguments(call);
      const at = args.template.slots.indexOf(match[2]);
      return at < 0 ? null : args.values[at].statistic(this.statistic);
    }));
  }
}
