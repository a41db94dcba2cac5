/** The strip: all calls in execution order on one canvas, to zoom into down to one call. */

import { formatCount } from "../data/numbers.js";
import { noMatch, search, SearchError } from "../data/search.js";
import { go } from "../frame/address.js";
import { h, replace } from "../frame/dom.js";
import { onThemeChange } from "../frame/theme.js";
import { callLink } from "../parts/links.js";
import { MOST_SEARCHED } from "./early_facts.js";
import { BAND, StripCanvas } from "./strip_canvas.js";
import { curvesOf } from "./strip_curve.js";
import { moduleBands, StripLayout } from "./strip_layout.js";
import { WAYS } from "./strip_values.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */
/** @typedef {import("../data/rank.js").Rank} Rank */
/** @typedef {import("./strip_canvas.js").Scene} Scene */

const ZOOM = 1.35;
const LEAST = 4; // calls that fill the strip when zoomed in

/** @implements {View} */
export class StripView {
  /**
   * @param {App} app
   * @param {(text: string) => void} say what came of the search
   */
  constructor(app, say) {
    this.app = app;
    this.say = say;
    this.element = h("section", { class: "view strip-view", "aria-label": "Strip" });
    /** @type {Rank | null} */
    this.rank = null;
    /** @type {Rank | null} the one that is being loaded */
    this.wanted = null;
    /** @type {Scene | null} */
    this.scene = null;
    this.way = "";
    this.query = "";
    this.dragged = 0;
    onThemeChange(() => this.draw());
  }

  /** @param {Place} place */
  async show(place) {
    const rank = await this.app.rankAt(place);
    if (!rank || !rank.loaded.calls.count) {
      this.rank = this.wanted = null;
      return replace(this.element, h("p", { class: "empty" }, rank ? "No call was recorded in this step." : "The report shows no step and rank call by call."));
    }
    if (!(await this.open(rank))) return;
    const scene = /** @type {Scene} */ (this.scene);
    if (place.q !== this.query) this.find(place.q);
    const call = place.call ? rank.loaded.calls.find(place.call) : -1;
    scene.selected = call;
    this.reveal(call);
    this.tell(call);
    this.draw();
  }

  /**
   * @param {Rank} rank
   * @returns {Promise<boolean>} whether it is still what is to be shown
   */
  async open(rank) {
    this.wanted = rank;
    if (rank === this.rank) return true;
    const layout = new StripLayout(rank);
    const ways = Object.entries(WAYS).filter(([, way]) => rank.loaded.judged || !way.needsJudged);
    if (!ways.some(([name]) => name === this.way)) this.way = rank.loaded.judged ? "error" : rank.outline.nonfinite?.first ? "nonfinite" : "phase";
    const way = WAYS[this.way];
    await this.load(rank, way);
    if (this.wanted !== rank) return false;
    this.rank = rank;
    this.query = "";
    this.scene = {
      layout, bands: moduleBands(layout), painting: way.paint(rank), curves: curvesOf(layout), matched: null, selected: -1, from: 0, to: layout.width,
      cause: this.causeIn(rank),
    };
    this.build(ways.map(([name, { title }]) => [name, title]));
    return true;
  }

  /**
   * Load the data that a way to colour calls needs; a server finds the origin of NaN on request.
   * @param {Rank} rank
   * @param {typeof WAYS[string]} way
   */
  async load(rank, way) {
    if (way.needsValues) await rank.loadAll();
    const { outline } = rank;
    if (way === WAYS.nonfinite && this.app.source.isServed && !outline.nonfinite && outline.calls <= MOST_SEARCHED) {
      outline.nonfinite = (await this.app.source.section(`${rank.key}/nonfinite`)).json;
    }
  }

  /** @param {Rank} rank */
  causeIn(rank) {
    const cause = this.app.comparison?.cause;
    const isHere = cause && cause.side === rank.side && cause.step === rank.step && cause.rank === rank.rank;
    const call = isHere ? cause.call : rank.side === "target" ? rank.outline.nonfinite?.first?.call : "";
    return call ? rank.loaded.calls.find(call) : -1;
  }

  /** @param {string[][]} ways */
  build(ways) {
    const scene = /** @type {Scene} */ (this.scene);
    const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "strip", "aria-hidden": "true" }));
    this.canvas = new StripCanvas(canvas);
    this.told = h("p", { class: "told", role: "status" });
    this.legend = h("p", { class: "legend" });
    this.found = h("span", { class: "found", role: "status" });
    const choose = h("select", { onchange: (/** @type {Event} */ event) => this.repaint(/** @type {HTMLSelectElement} */ (event.target).value) },
      ways.map(([name, title]) => h("option", { value: name, selected: name === this.way }, title)));
    const holder = h("div", {
      class: "strip-holder", tabindex: "0", role: "group", "aria-label": "All calls in execution order: forward above the axis, backward mirrored below. Arrows pan, plus and minus zoom, j and k go from call to call.",
      onwheel: (/** @type {WheelEvent} */ event) => this.wheeled(event), onpointerdown: (/** @type {PointerEvent} */ event) => this.pressedAt(event),
      onpointermove: (/** @type {PointerEvent} */ event) => this.movedTo(event), onclick: (/** @type {MouseEvent} */ event) => this.clicked(event),
      ondblclick: () => scene.selected >= 0 && go({ view: "call" }), onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
    }, canvas);
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) => h("button", { type: "button", class: "quiet", "aria-label": label, onclick: act }, text);
    replace(this.element, h("h1", { class: "unseen" }, "Strip"),
      h("div", { class: "strip-bar" }, h("label", {}, "Colour by ", choose), this.legend, this.found, h("span", { class: "spacer" }),
        button("−", "Zoom out", () => this.zoom(1 / ZOOM)), button("+", "Zoom in", () => this.zoom(ZOOM)), button("All", "Show all", () => this.seeAll())),
      h("div", { class: "card strip-card" }, holder), this.told,
      scene.curves ? h("p", { class: "legend curve-legend" }, swatch("accent"), "error of forward ", swatch("phase-backward"), "error of backward ", swatch("muted"), "noise floor, dashed") : null);
    this.showLegend();
    new ResizeObserver(() => this.draw()).observe(holder);
  }

  showLegend() {
    const { legend } = /** @type {Scene} */ (this.scene).painting;
    if (this.legend) replace(this.legend, legend.flatMap(([name, text]) => [swatch(name), `${text} `]));
  }

  /** @param {string} name */
  async repaint(name) {
    const rank = /** @type {Rank} */ (this.rank);
    this.way = name;
    await this.load(rank, WAYS[name]);
    if (!this.scene || this.rank !== rank) return;
    this.scene.painting = WAYS[name].paint(rank);
    this.showLegend();
    this.draw();
  }

  /** @param {string} query */
  find(query) {
    this.query = query;
    const rank = /** @type {Rank} */ (this.rank);
    const scene = /** @type {Scene} */ (this.scene);
    try {
      scene.matched = search(rank, query, rank.resultOf);
      const count = scene.matched ? scene.matched.reduce((sum, one) => sum + one, 0) : 0;
      this.tellFound(!scene.matched ? "" : count ? `${formatCount(count, "call")} found` : noMatch(query));
    } catch (error) {
      if (!(error instanceof SearchError)) throw error;
      this.tellFound(error.message);
    }
  }

  /** @param {string} text what came of the search */
  tellFound(text) {
    this.say(text);
    if (this.found) replace(this.found, text);
  }

  draw() {
    if (this.scene && this.canvas && this.element.isConnected) this.canvas.draw(this.scene);
  }

  /** @param {number} call */
  tell(call) {
    if (!this.told || !this.rank || !this.scene) return;
    if (call < 0) return replace(this.told, h("span", { class: "muted" }, "Point at a call; click selects it, and again opens it. Scroll to zoom, drag to pan."));
    const { calls } = this.rank.loaded;
    replace(this.told, callLink(this.app, this.rank, calls.name(call)), ` ${this.scene.painting.text(call)}`,
      h("span", { class: "muted" }, ` ${[calls.fqn(call), calls.source(call)].filter(Boolean).join(" · ")}`));
  }

  /**
   * @param {MouseEvent} event
   * @returns {number} call
   */
  callAt(event) {
    const scene = /** @type {Scene} */ (this.scene);
    const canvas = /** @type {StripCanvas} */ (this.canvas);
    const box = canvas.canvas.getBoundingClientRect();
    const x = scene.from + ((event.clientX - box.left) / box.width) * (scene.to - scene.from);
    const y = event.clientY - box.top;
    if (y < scene.bands.length * BAND) return this.moduleAt(x, Math.floor(y / BAND));
    return scene.layout.at(x, y < canvas.axisOf(scene) ? 1 : -1);
  }

  /**
   * @param {number} x
   * @param {number} level
   */
  moduleAt(x, level) {
    const scene = /** @type {Scene} */ (this.scene);
    const { calls } = scene.layout.rank.loaded;
    const band = scene.bands[level].find(({ start, end }) => start <= x && x < end);
    return band ? calls.find(`Module.${band.fqn}.0.forward`) : -1;
  }

  /** @param {PointerEvent} event */
  movedTo(event) {
    if (event.buttons === 1 && this.scene && this.canvas) {
      this.dragged += Math.abs(event.movementX);
      this.pan((-event.movementX / this.canvas.width) * (this.scene.to - this.scene.from));
    } else {
      const call = this.callAt(event);
      this.tell(call >= 0 ? call : this.scene?.selected ?? -1);
    }
  }

  /** @param {PointerEvent} event */
  pressedAt(event) {
    this.dragged = 0;
    if (event.target instanceof Element) event.target.setPointerCapture(event.pointerId);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const call = this.callAt(event);
    if (call >= 0 && this.dragged < 4) this.select(call);
  }

  /** @param {number} call */
  select(call) {
    const rank = /** @type {Rank} */ (this.rank);
    go({ ...this.app.placeOf(rank), call: rank.loaded.calls.name(call) }, { replace: true });
  }

  /** @param {WheelEvent} event */
  wheeled(event) {
    event.preventDefault();
    const scene = /** @type {Scene} */ (this.scene);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.pan((event.deltaX / 1000) * (scene.to - scene.from));
    const box = /** @type {StripCanvas} */ (this.canvas).canvas.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 400), (event.clientX - box.left) / box.width);
  }

  /**
   * @param {number} factor
   * @param {number} [at] share of the width that stays in its place
   */
  zoom(factor, at = 0.5) {
    const scene = /** @type {Scene} */ (this.scene);
    const span = scene.to - scene.from;
    const wanted = Math.min(Math.max(span / factor, Math.min(LEAST, scene.layout.width)), scene.layout.width);
    scene.from += (span - wanted) * at;
    scene.to = scene.from + wanted;
    this.pan(0);
  }

  /** @param {number} by */
  pan(by) {
    const scene = /** @type {Scene} */ (this.scene);
    const span = scene.to - scene.from;
    scene.from = Math.min(Math.max(0, scene.from + by), scene.layout.width - span);
    scene.to = scene.from + span;
    requestAnimationFrame(() => this.draw());
  }

  seeAll() {
    const scene = /** @type {Scene} */ (this.scene);
    [scene.from, scene.to] = [0, scene.layout.width];
    this.draw();
  }

  /** @param {number} call */
  reveal(call) {
    const scene = /** @type {Scene} */ (this.scene);
    if (call < 0) return;
    const [start, end] = [scene.layout.start[call], scene.layout.end[call]];
    if (end === start || (end > scene.from && start < scene.to)) return;
    const span = scene.to - scene.from;
    scene.from = (start + end - span) / 2;
    scene.to = scene.from + span;
    this.pan(0);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (!this.scene || !this.rank || event.ctrlKey || event.metaKey || event.altKey) return;
    const { scene } = this;
    const span = scene.to - scene.from;
    if (event.key === "+" || event.key === "=") this.zoom(ZOOM);
    else if (event.key === "-") this.zoom(1 / ZOOM);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.pan((event.key === "ArrowLeft" ? -1 : 1) * span * 0.1);
    else if (["j", "ArrowDown"].includes(event.key)) this.step(1);
    else if (["k", "ArrowUp"].includes(event.key)) this.step(-1);
    else if (event.key === "Enter" && scene.selected >= 0) go({ view: "call" });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} by innermost calls */
  step(by) {
    const { layout, selected } = /** @type {Scene} */ (this.scene);
    const at = layout.leaves.findIndex((call) => call >= selected);
    const isLeaf = layout.leaves[at] === selected;
    const next = selected < 0 ? 0 : at < 0 ? layout.leaves.length - 1 : by > 0 && !isLeaf ? at : at + by;
    this.select(layout.leaves[Math.max(0, Math.min(layout.leaves.length - 1, next))]);
  }
}

/** @param {string} name of a colour of the theme */
function swatch(name) {
  return h("span", { class: `swatch swatch-${name}`, "aria-hidden": "true" });
}
