/** The graph of one module: what ran directly in it, and which values and gradients go from one to the other. */

import { BACKWARD, PHASES } from "../data/calls.js";

/** @typedef {import("../data/calls.js").Calls} Calls */
/** @typedef {import("../data/rank.js").Rank} Rank */
/** @typedef {import("../data/rank.js").Value} Value */

/**
 * @typedef {object} Node
 * @property {string} id
 * @property {"call" | "module" | "input" | "output"} kind
 * @property {number} call -1 for inputs and outputs of the module
 * @property {string} title
 * @property {string} type of its result
 */
/** @typedef {{from: string, to: string, text: string, isBackward: boolean}} Edge */
/** @typedef {{nodes: Node[], edges: Edge[], drawn: number, calls: number}} Graph `drawn` of so many `calls` are in it */
/** @typedef {{path: string, call: number}} Opened a module's path, MODEL or OUTSIDE, and the call whose inside is shown; -1 for none */

export const MOST_NODES = 80;
/** In an address: the model itself, whose path is "", and what ran outside of modules. */
export const MODEL = "(model)";
export const OUTSIDE = "(outside)";

/**
 * Return the modules of a step and rank as a tree of paths.
 * @param {Rank} rank
 * @returns {Map<string, string[]>} path to the paths directly in it; "" is the root
 */
export function moduleTree(rank) {
  const { calls } = rank.loaded;
  /** @type {Map<string, string[]>} */
  const tree = new Map([["", []]]);
  const add = (/** @type {string} */ fqn) => {
    if (tree.has(fqn)) return;
    tree.set(fqn, []);
    const outer = fqn.includes(".") ? fqn.slice(0, fqn.lastIndexOf(".")) : "";
    add(outer);
    tree.get(outer)?.push(fqn);
  };
  calls.modules.forEach(add);
  return tree;
}

/**
 * Return the forward call of the model: of the calls of modules that ran in no other, the one with most calls in it; -1 for none.
 * @param {Rank} rank
 */
export function modelCall(rank) {
  const { calls, tree } = rank.loaded;
  const found = tree.roots().filter((call) => calls.kind(call) === "module" && PHASES[calls.phase[call]] === "forward");
  return found.reduce((best, call) => best < 0 || tree.size[call] > tree.size[best] ? call : best, -1);
}

/**
 * Return what is opened: the module that is asked for, that of the selected call, or the model.
 * @param {Rank} rank
 * @param {string} module path, MODEL, OUTSIDE, or ""
 * @param {number} selected call, -1 for none
 * @returns {Opened}
 */
export function openedModule(rank, module, selected) {
  const { calls, tree } = rank.loaded;
  if (module === OUTSIDE) return { path: OUTSIDE, call: -1 };
  if (module && module !== MODEL) return { path: module, call: calls.find(`Module.${module}.0.forward`) };
  let outermost = module ? -1 : selected;
  if (outermost >= 0 && calls.fqn(outermost)) return openedModule(rank, calls.fqn(outermost), -1);
  while (outermost >= 0 && tree.parent[outermost] >= 0) outermost = tree.parent[outermost];
  const call = outermost >= 0 ? outermost : modelCall(rank);
  if (call < 0 || calls.kind(call) !== "module") return { path: OUTSIDE, call: -1 };
  return { path: calls.fqn(call) || MODEL, call };
}

/**
 * @param {Rank} rank
 * @param {Opened} opened
 * @param {number} [from] the first of its calls that is drawn
 * @returns {Promise<Graph>}
 */
export async function moduleGraph(rank, { path, call: outer }, from = 0) {
  const { calls, tree } = rank.loaded;
  const inside = outer >= 0 ? tree.children(outer) : path === OUTSIDE ? tree.roots() : [];
  const forward = inside.filter((call) => PHASES[calls.phase[call]] === "forward");
  const chosen = forward.slice(from, from + MOST_NODES);
  const builder = new Builder(rank);
  if (outer >= 0) await builder.addInputs(outer);
  for (const call of chosen) await builder.addCall(call);
  if (outer >= 0) await builder.addOutputs(outer);
  return { nodes: builder.usedNodes(), edges: builder.edges, drawn: chosen.length, calls: forward.length };
}

/**
 * Nodes and edges, from what calls were given and returned. A value comes from the call before that returned it first,
 * and so does a gradient.
 */
class Builder {
  /** @param {Rank} rank */
  constructor(rank) {
    this.rank = rank;
    /** @type {Node[]} */
    this.nodes = [];
    /** @type {Edge[]} */
    this.edges = [];
    /** @type {Set<string>} */
    this.drawn = new Set();
    /** @type {Map<number, string>} node that made a value */
    this.makers = new Map();
    /** @type {Map<string, Set<number>>} gradients that came to a node */
    this.arrived = new Map();
  }

  /** @param {number} outer */
  async addInputs(outer) {
    const args = await this.rank.arguments(outer);
    for (const [slot, value] of args.of("input")) {
      this.nodes.push({ id: slot, kind: "input", call: -1, title: slot, type: value.signature.text });
      this.makers.set(value.index, slot);
    }
  }

  /** @param {number} outer */
  async addOutputs(outer) {
    const args = await this.rank.arguments(outer);
    for (const [slot, value] of args.of("output")) {
      this.nodes.push({ id: slot, kind: "output", call: -1, title: slot, type: value.signature.text });
      const from = this.makers.get(value.index);
      if (from) this.addEdge(from, slot, value.signature.text, false);
    }
  }

  /** @param {number} call */
  async addCall(call) {
    const { calls } = this.rank.loaded;
    const id = String(call);
    const kind = calls.kind(call) === "module" ? "module" : "call";
    const args = await this.rank.arguments(call);
    const name = calls.name(call).replace(/\.forward$/, "");
    const title = kind === "module" ? calls.fqn(call).split(".").slice(-2).join(".") || name : name;
    this.nodes.push({ id, kind, call, title, type: args.result });
    const gradients = await this.gradients(call);
    for (const [slot, value] of args.of("input")) {
      const from = this.makers.get(value.index);
      if (!from) continue;
      this.addEdge(from, id, value.signature.text, false);
      const gradient = gradients.sent.get(slot) ?? gradients.passed.find(({ index }) => this.arrived.get(from)?.has(index));
      if (gradient) this.addEdge(id, from, gradient.signature.text, true);
    }
    this.arrived.set(id, gradients.arrived);
    for (const [, value] of [...args.of("output"), ...args.of("mutated")]) {
      if (!this.makers.has(value.index)) this.makers.set(value.index, id);
    }
  }

  /**
   * Return the gradients of a call: those sent to its inputs, by slot, where it is known which; those that its backward
   * passed on, and those that came to it.
   * @param {number} call
   */
  async gradients(call) {
    const { calls } = this.rank.loaded;
    /** @type {Map<string, Value>} */
    const sent = new Map();
    /** @type {Value[]} */
    const passed = [];
    /** @type {Set<number>} */
    const arrived = new Set();
    for (const backward of this.rank.belongingTo(call).filter((one) => calls.phase[one] === BACKWARD)) {
      const args = await this.rank.arguments(backward);
      for (const [, value] of args.of("input")) arrived.add(value.index);
      for (const [slot, value] of args.of("output")) {
        // The backward of an API or module call returns gradients in the places of the arguments.
        if (isCounterpart(calls, backward, call)) sent.set(slot.replace("output", "input"), value);
        else passed.push(value);
      }
    }
    return { sent, passed, arrived };
  }

  /**
   * @param {string} from
   * @param {string} to
   * @param {string} text
   * @param {boolean} isBackward
   */
  addEdge(from, to, text, isBackward) {
    const key = `${from} ${to} ${isBackward}`;
    if (this.drawn.has(key)) return;
    this.drawn.add(key);
    this.edges.push({ from, to, text, isBackward });
  }

  /** Nodes without ends of the module that nothing here touches. */
  usedNodes() {
    const used = new Set(this.edges.flatMap(({ from, to }) => [from, to]));
    return this.nodes.filter(({ id, kind }) => kind === "call" || kind === "module" || used.has(id));
  }
}

/**
 * Return true if a call is the backward, as a whole, of an API or module call.
 * @param {Calls} calls
 * @param {number} backward
 * @param {number} call
 */
function isCounterpart(calls, backward, call) {
  return calls.op[backward] === calls.op[call] && ["api", "module"].includes(calls.kind(call));
}
