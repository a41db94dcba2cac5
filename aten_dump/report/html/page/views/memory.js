/** What forward keeps alive for backward: by module, and over the step. */

import { formatBytes } from "../data/numbers.js";
import { SavedMemory } from "../data/saved.js";
import { address } from "../frame/address.js";
import { h, replace, svg } from "../frame/dom.js";
import { callLink } from "../parts/links.js";
import { squarified } from "../parts/treemap.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */
/** @typedef {import("../data/rank.js").Rank} Rank */

const WIDTH = 1200;
const MAP_HEIGHT = 380;
const CURVE_HEIGHT = 170;
const MOST_ROWS = 25;

/** @implements {View} */
export class MemoryView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.element = h("section", { class: "view memory-view", "aria-label": "Memory" });
    this.shown = "";
  }

  forget() {
    this.shown = "";
  }

  /** @param {Place} place */
  async show(place) {
    const rank = await this.app.rankAt(place);
    const key = `${rank?.key} ${place.module}`;
    if (this.shown === key) return;
    this.shown = key;
    const section = rank ? await this.app.source.optional(`${rank.key}/saved`) : null;
    if (this.shown !== key) return;
    if (!rank || !section) return replace(this.element, h("p", { class: "empty" }, "Forward kept nothing alive for backward, or it was not recorded."));
    const saved = new SavedMemory(section, rank.loaded.calls.count);
    const kept = saved.total(false);
    const outside = saved.total(true) - kept;
    replace(this.element,
      h("div", { class: "lead" }, h("h1", {}, `${formatBytes(kept)} kept for backward`), h("p", { class: "sub" }, `and ${formatBytes(outside)} in parameters, buffers and inputs, which exist anyway`)),
      h("section", { class: "card" }, h("h2", {}, "Over the step"), curve(saved, rank)),
      h("section", { class: "card" }, h("h2", {}, "By module"), this.trail(place), this.map(saved, rank, place)),
      h("section", { class: "card" }, h("h2", {}, "The largest"), this.largest(saved, rank)));
  }

  /** @param {Place} place */
  trail({ module, ...place }) {
    if (!module) return null;
    const parts = module.split(".");
    return h("p", { class: "trail" }, h("a", { href: address({ ...place, module: "" }) }, "all"), parts.map((part, i) => [" › ", h("a", { href: address({ ...place, module: parts.slice(0, i + 1).join(".") }) }, part)]).flat());
  }

  /**
   * @param {SavedMemory} saved
   * @param {Rank} rank
   * @param {Place} place
   */
  map(saved, rank, place) {
    const { calls } = rank.loaded;
    const all = [...saved.byModule((call) => calls.fqn(call))].filter(([fqn]) => !place.module || fqn === place.module || fqn.startsWith(`${place.module}.`));
    const depth = place.module ? place.module.split(".").length : 0;
    const outer = outermost(all, depth + 1, place.module);
    const boxes = squarified(outer, { x: 0, y: 0, width: WIDTH, height: MAP_HEIGHT });
    const total = outer.reduce((sum, { size }) => sum + size, 0);
    return svg("svg", { class: "treemap", viewBox: `0 0 ${WIDTH} ${MAP_HEIGHT}`, role: "group", "aria-label": "Bytes kept, by module" }, boxes.map((box) => {
      const inside = all.filter(([fqn]) => fqn === box.item || fqn.startsWith(`${box.item}.`));
      const cells = inside.length > 1 && box.width > 40 && box.height > 50 ? squarified(grouped(inside, box.item.split(".").length + 1, box.item), { x: box.x + 3, y: box.y + 22, width: box.width - 6, height: box.height - 25 }) : [];
      const name = box.item || "outside of modules";
      const label = `${name}: ${formatBytes(box.size)}, ${((100 * box.size) / total).toFixed(1)}%`;
      const body = [svg("rect", { class: cells.length ? "outer" : "leaf", x: box.x + 1, y: box.y + 1, width: Math.max(box.width - 2, 0), height: Math.max(box.height - 2, 0), rx: 3 }, svg("title", {}, label)),
        ...cells.map((cell) => svg("rect", { class: "leaf", x: cell.x + 1, y: cell.y + 1, width: Math.max(cell.width - 2, 0.5), height: Math.max(cell.height - 2, 0.5), rx: 2 }, svg("title", {}, `${cell.item}: ${formatBytes(cell.size)}`))),
        text(box.x + 7, box.y + 16, `${shortened(name, depth)} ${formatBytes(box.size)}`, box.width - 12, "name"),
        ...cells.map((cell) => text(cell.x + 6, cell.y + 16, cell.item.split(".").slice(box.item.split(".").length).join(".") || "itself", cell.width - 10, "inner"))];
      return box.item && inside.some(([fqn]) => fqn !== box.item) ? svg("a", { href: address({ ...place, view: "memory", module: box.item }) }, body) : svg("g", {}, body);
    }));
  }

  /**
   * @param {SavedMemory} saved
   * @param {Rank} rank
   */
  largest(saved, rank) {
    const { calls } = rank.loaded;
    const rows = Array.from(saved.nbytes, (_, i) => i).filter((i) => !saved.outside[i]).sort((one, other) => saved.nbytes[other] - saved.nbytes[one]).slice(0, MOST_ROWS);
    const line = (/** @type {number} */ i) => h("tr", {}, h("td", { class: "number" }, formatBytes(saved.nbytes[i]).padStart(10)), h("td", {}, callLink(this.app, rank, calls.name(saved.keeper[i]))),
      h("td", { class: "mono" }, saved.nodes[saved.node[i]]), h("td", { class: "mono" }, calls.fqn(saved.keeper[i])), h("td", {}, saved.until[i] < saved.count ? callLink(this.app, rank, calls.name(saved.until[i])) : h("span", { class: "muted" }, "the end")));
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The largest" }, h("table", { class: "facts-table" },
      h("thead", {}, h("tr", {}, ["bytes", "kept first by", "node", "module", "until"].map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows.map(line))));
  }
}

/**
 * @param {[string, number][]} all bytes by module
 * @param {number} depth of the paths to sum up to
 * @param {string} itself path whose own bytes stay apart
 */
function grouped(all, depth, itself) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const [fqn, size] of all) {
    const path = fqn === itself ? fqn : fqn.split(".").slice(0, depth).join(".");
    found.set(path, (found.get(path) ?? 0) + size);
  }
  return [...found].map(([item, size]) => ({ item, size }));
}

/**
 * Sum up to the first depth at which there is something to compare.
 * @param {[string, number][]} all
 * @param {number} depth
 * @param {string} itself
 */
function outermost(all, depth, itself) {
  let found = grouped(all, depth, itself);
  for (let deeper = depth + 1; deeper < depth + 5 && isLopsided(found); deeper++) found = grouped(all, deeper, itself);
  return found;
}

/** @param {{size: number}[]} found */
function isLopsided(found) {
  const sizes = found.map(({ size }) => size);
  return sizes.length < 4 || Math.max(...sizes) > 0.6 * sizes.reduce((sum, size) => sum + size, 0);
}

/**
 * @param {string} name
 * @param {number} depth
 */
function shortened(name, depth) {
  return name.split(".").slice(depth).join(".") || name;
}

/**
 * @param {number} x
 * @param {number} y
 * @param {string} content
 * @param {number} room
 * @param {string} kind
 */
function text(x, y, content, room, kind) {
  const letters = Math.floor(room / 6.6);
  if (letters < 3) return null;
  return svg("text", { x, y, class: kind }, content.length > letters ? `${content.slice(0, letters - 1)}…` : content);
}

/**
 * @param {SavedMemory} saved
 * @param {Rank} rank
 */
function curve(saved, rank) {
  const points = saved.curve();
  const most = Math.max(...points.map(({ nbytes }) => nbytes), 1);
  const at = points.find(({ nbytes }) => nbytes === most);
  const x = (/** @type {number} */ call) => (call / Math.max(saved.count, 1)) * WIDTH;
  const y = (/** @type {number} */ nbytes) => CURVE_HEIGHT - (nbytes / most) * (CURVE_HEIGHT - 24);
  let d = `M0,${CURVE_HEIGHT}`;
  for (const { call, nbytes } of points) d += `H${x(call).toFixed(1)}V${y(nbytes).toFixed(1)}`;
  const peak = at ? x(at.call) : 0;
  const anchor = peak > WIDTH * 0.7 ? "end" : "start";
  const label = `At most ${formatBytes(most)} at ${at ? rank.loaded.calls.name(at.call) : ""}`;
  return svg("svg", { class: "memory-curve", viewBox: `0 0 ${WIDTH} ${CURVE_HEIGHT}`, role: "img", "aria-label": label },
    svg("path", { class: "area", d: `${d}V${CURVE_HEIGHT}Z` }), svg("path", { class: "line", d }), svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: CURVE_HEIGHT - 0.5, y2: CURVE_HEIGHT - 0.5 }),
    svg("circle", { cx: peak, cy: y(most), r: 3.5 }), svg("text", { x: peak + (anchor === "end" ? -8 : 8), y: 15, "text-anchor": anchor }, label));
}
