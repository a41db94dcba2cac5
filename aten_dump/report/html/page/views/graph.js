/** The module tree, and of the module that is opened a graph of what ran in it. */

import { address, go } from "../frame/address.js";
import { h, replace, svg } from "../frame/dom.js";
import { severity } from "../parts/links.js";
import { laidOut } from "./graph_layout.js";
import { MODEL, modelCall, moduleGraph, moduleTree, MOST_NODES, openedModule, OUTSIDE } from "./graph_model.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */
/** @typedef {import("../data/rank.js").Rank} Rank */
/** @typedef {import("./graph_model.js").Node} Node */
/** @typedef {import("./graph_layout.js").Drawing} Drawing */

/** @implements {View} */
export class GraphView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.tree = h("nav", { class: "module-tree", "aria-label": "Modules" });
    this.title = h("h1", { class: "mono" });
    this.note = h("p", { class: "muted" });
    this.drawing = h("div", { class: "graph-scroll", tabindex: "0", role: "region", "aria-label": "Graph of the module" });
    this.backward = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", checked: true, onchange: () => this.drawing.classList.toggle("without-backward", !this.backward.checked) }));
    this.element = h("section", { class: "view graph-view", "aria-label": "Graph" }, this.tree,
      h("div", { class: "graph-main" }, h("div", { class: "graph-head" }, this.title, h("label", {}, this.backward, " gradients")), this.note, this.drawing));
    this.shown = "";
    this.from = 0;
    /** @type {Node[]} those with a call, in execution order */
    this.nodes = [];
    /** @type {Rank | null} */
    this.rank = null;
    this.path = "";
  }

  forget() {
    this.shown = "";
  }

  /** @param {Place} place */
  async show(place) {
    const rank = await this.app.rankAt(place);
    if (!rank) return replace(this.drawing, h("p", { class: "empty" }, "The report shows no step and rank call by call."));
    const { calls } = rank.loaded;
    const call = place.call ? calls.find(place.call) : -1;
    const opened = openedModule(rank, place.module, call);
    const where = `${rank.key} ${opened.path} ${opened.call}`;
    if (!this.shown.startsWith(`${where} from `)) this.from = 0;
    const key = `${where} from ${this.from}`;
    if (this.shown !== key) {
      this.shown = key;
      this.showTree(rank, place, opened.path);
      replace(this.title, opened.path === MODEL ? modelName(rank, opened.call) : opened.path === OUTSIDE ? "outside of modules" : opened.path);
      const graph = await moduleGraph(rank, opened, this.from);
      if (this.shown !== key) return;
      [this.rank, this.path, this.nodes] = [rank, opened.path, graph.nodes.filter((node) => node.call >= 0)];
      this.tellPart(graph, place);
      if (!graph.nodes.length) return replace(this.drawing, h("p", { class: "empty" }, "Nothing ran in it in forward."));
      replace(this.drawing, this.draw(rank, place, graph.nodes, await laidOut(graph)));
    }
    this.mark(call);
  }

  /**
   * Of a module with more calls than can be drawn, say which these are, with a way to the others.
   * @param {import("./graph_model.js").Graph} graph
   * @param {Place} place
   */
  tellPart({ drawn, calls }, place) {
    const turn = (/** @type {string} */ text, /** @type {number} */ by) => h("button", {
      type: "button", class: "quiet", disabled: this.from + by < 0 || this.from + by >= calls, onclick: () => {
        this.from += by;
        this.show(place);
      } }, text);
    replace(this.note, drawn < calls ? [`Calls ${this.from + 1} to ${this.from + drawn} of ${calls.toLocaleString("en")}, in execution order. `, turn("Earlier", -MOST_NODES), turn("Later", MOST_NODES)] : null);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const by = /** @type {Record<string, number>} */ ({ j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 })[event.key];
    const { rank } = this;
    if (!rank || !this.nodes.length || (!by && event.key !== "Enter")) return;
    const { calls } = rank.loaded;
    const at = this.nodes.findIndex((node) => this.drawing.querySelector(".selected")?.getAttribute("data-call") === String(node.call));
    if (by) {
      const next = this.nodes[at < 0 ? 0 : Math.max(0, Math.min(this.nodes.length - 1, at + by))];
      go({ ...this.app.placeOf(rank), module: this.path, call: calls.name(next.call) }, { replace: true });
    } else if (at >= 0) {
      const { kind, call } = this.nodes[at];
      go(kind === "module" ? { module: calls.fqn(call) || MODEL, call: "" } : { view: "call" });
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * @param {Rank} rank
   * @param {Place} place
   * @param {string} fqn
   */
  showTree(rank, place, fqn) {
    const model = modelCall(rank);
    const top = (/** @type {string} */ text, /** @type {string} */ module) => h("li", {}, h("a", { href: address({ ...place, view: "graph", module, call: "" }), "aria-current": fqn === module ? "true" : null }, text));
    const tree = moduleTree(rank);
    /** @type {(path: string) => HTMLElement} */
    const item = (path) => {
      const inner = tree.get(path) ?? [];
      const link = h("a", { href: address({ ...place, view: "graph", module: path, call: "" }), class: "mono", "aria-current": path === fqn ? "true" : null }, path.split(".").pop() ?? "");
      if (!inner.length) return h("li", {}, h("span", { class: "twisty" }), link);
      const list = h("ul", { hidden: !(fqn === path || fqn.startsWith(`${path}.`)) }, inner.map(item));
      return h("li", {}, twisty(list, path), link, list);
    };
    replace(this.tree, h("h2", {}, "Modules"), h("ul", {}, top("outside of modules", OUTSIDE), model >= 0 && !rank.loaded.calls.fqn(model) ? top(modelName(rank, model), MODEL) : null, (tree.get("") ?? []).map(item)));
    this.tree.querySelector("[aria-current=true]")?.scrollIntoView({ block: "nearest" });
  }

  /**
   * @param {Rank} rank
   * @param {Place} place
   * @param {Node[]} nodes
   * @param {Drawing} drawing
   */
  draw(rank, place, nodes, { boxes, paths, width, height }) {
    const edges = paths.map(({ d, edge }) => svg("path", { d, class: edge.isBackward ? "edge backward" : "edge", "marker-end": `url(#${edge.isBackward ? "arrow-backward" : "arrow"})` }, svg("title", {}, edge.text)));
    return svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Calls and values" },
      svg("defs", {}, arrow("arrow"), arrow("arrow-backward")), edges, nodes.map((node) => this.node(rank, place, node, /** @type {any} */ (boxes.get(node.id)))));
  }

  /**
   * @param {Rank} rank
   * @param {Place} place
   * @param {Node} node
   * @param {import("./graph_layout.js").Box} box
   */
  node(rank, place, node, { x, y, width, height }) {
    const { calls, judged } = rank.loaded;
    const [left, top] = [x - width / 2, y - height / 2];
    if (node.call < 0) {
      return svg("g", { class: `node ${node.kind}` }, svg("rect", { x: left, y: top, width, height, rx: height / 2 }),
        svg("text", { x, y: y + 4, "text-anchor": "middle" }, node.title, svg("tspan", { class: "type" }, ` ${node.type}`)));
    }
    const name = calls.name(node.call);
    const inner = calls.fqn(node.call);
    const target = node.kind === "module" ? address({ ...place, view: "graph", module: inner || MODEL, call: name }) : this.app.callAddress(rank, name);
    const error = judged ? severity(judged.overFloor(node.call)) : 0;
    const most = Math.floor((width - 20) / 7);
    return svg("a", { href: target, class: `node ${node.kind} severity-${error}`, "data-call": node.call, "data-name": name },
      svg("rect", { x: left, y: top, width, height, rx: 6 }, svg("title", {}, `${name}: ${node.type}`)), svg("rect", { class: "mark", x: left, y: top + 6, width: 3, height: height - 12 }),
      svg("text", { x: left + 12, y: y - 3 }, node.title), svg("text", { class: "type", x: left + 12, y: y + 13 }, node.type.length > most ? `${node.type.slice(0, most - 1)}…` : node.type));
  }

  /** @param {number} call */
  mark(call) {
    for (const node of this.drawing.querySelectorAll("[data-call]")) node.classList.toggle("selected", node.getAttribute("data-call") === String(call));
    this.drawing.querySelector(".selected")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/**
 * The name of the model: that of its class.
 * @param {Rank} rank
 * @param {number} call of the model
 */
function modelName(rank, call) {
  const { calls } = rank.loaded;
  return calls.ops[calls.op[call]].head.replace(/^Module\./, "");
}

/**
 * A button that opens and closes a list.
 * @param {HTMLElement} list
 * @param {string} path
 */
function twisty(list, path) {
  const button = h("button", { type: "button", class: "twisty", "aria-label": `inside ${path}`, onclick: () => {
    list.hidden = !list.hidden;
    show();
  } });
  const show = () => {
    button.setAttribute("aria-expanded", String(!list.hidden));
    replace(button, list.hidden ? "▸" : "▾");
  };
  show();
  return button;
}

/** @param {string} id */
function arrow(id) {
  return svg("marker", { id, class: id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0,0.5L7,4L0,7.5z" }));
}

