/** The module tree, and of the module that is opened a graph of what ran in it. */

import { address } from "../frame/address.js";
import { h, replace, svg } from "../frame/dom.js";
import { severity } from "../parts/links.js";
import { laidOut } from "./graph_layout.js";
import { moduleGraph, moduleTree } from "./graph_model.js";

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
    const fqn = place.module || (call >= 0 ? calls.fqn(call) : "");
    const key = `${rank.key} ${fqn}`;
    if (this.shown !== key) {
      this.shown = key;
      this.showTree(rank, place, fqn);
      replace(this.title, fqn || "outside of modules");
      const graph = await moduleGraph(rank, fqn);
      if (this.shown !== key) return;
      replace(this.note, graph.leftOut ? `The first ${graph.drawn} of ${graph.drawn + graph.leftOut} calls are drawn.` : "");
      if (!graph.nodes.length) return replace(this.drawing, h("p", { class: "empty" }, "Nothing ran in it in forward."));
      replace(this.drawing, this.draw(rank, place, graph.nodes, await laidOut(graph)));
    }
    this.mark(call);
  }

  /**
   * @param {Rank} rank
   * @param {Place} place
   * @param {string} fqn
   */
  showTree(rank, place, fqn) {
    const tree = moduleTree(rank);
    /** @type {(path: string) => HTMLElement} */
    const item = (path) => {
      const inner = tree.get(path) ?? [];
      const link = h("a", { href: address({ ...place, view: "graph", module: path, call: "" }), class: "mono", "aria-current": path === fqn ? "true" : null }, path.split(".").pop() ?? "");
      if (!inner.length) return h("li", {}, h("span", { class: "twisty" }), link);
      const list = h("ul", { hidden: !(fqn === path || fqn.startsWith(`${path}.`)) }, inner.map(item));
      return h("li", {}, twisty(list, path), link, list);
    };
    replace(this.tree, h("h2", {}, "Modules"), h("ul", {}, h("li", {}, h("a", { href: address({ ...place, view: "graph", module: "", call: "" }), "aria-current": fqn === "" ? "true" : null }, "outside of modules")), (tree.get("") ?? []).map(item)));
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
    const target = node.kind === "module" ? address({ ...place, view: "graph", module: inner, call: name }) : this.app.callAddress(rank, name);
    const error = judged ? severity(judged.overFloor(node.call)) : 0;
    const most = Math.floor((width - 20) / 7);
    return svg("a", { href: target, class: `node ${node.kind} severity-${error}`, "data-call": node.call, "data-name": name },
      svg("rect", { x: left, y: top, width, height, rx: 6 }, svg("title", {}, `${name}: ${node.type}`)), svg("rect", { class: "mark", x: left, y: top + 6, width: 3, height: height - 12 }),
      svg("text", { x: left + 12, y: y - 3 }, node.title), svg("text", { class: "type", x: left + 12, y: y + 13 }, node.type.length > most ? `${node.type.slice(0, most - 1)}…` : node.type));
  }

  /** @param {number} call */
  mark(call) {
    for (const node of this.drawing.querySelectorAll("[data-call]")) node.classList.toggle("selected", node.getAttribute("data-call") === String(call));
  }
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

