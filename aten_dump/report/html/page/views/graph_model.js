/** The graph of one module: what ran directly in it, and which values and gradients go from one to the other. */

import { PHASES } from "../data/calls.js";

/** @typedef {import("../data/rank.js").Rank} Rank */

/**
 * @typedef {object} Node
 * @property {string} id
 * @property {"call" | "module" | "input" | "output"} kind
 * @property {number} call -1 for inputs and outputs of the module
 * @property {string} title
 * @property {string} type of its result
 */
/** @typedef {{from: string, to: string, text: string, isBackward: boolean}} Edge */
/** @typedef {{nodes: Node[], edges: Edge[], leftOut: number}} Graph */

const MOST_NODES = 80;

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
 * Return the call whose inside is the graph of a module; -1 for the root, or where it did not run.
 * @param {Rank} rank
 * @param {string} fqn
 */
export function moduleCall(rank, fqn) {
  if (!fqn) return -1;
  const { calls } = rank.loaded;
  const found = calls.find(`Module.${fqn}.0.forward`);
  return found;
}

/**
 * @param {Rank} rank
 * @param {string} fqn
 * @returns {Promise<Graph>}
 */
export async function moduleGraph(rank, fqn) {
  const { calls, tree } = rank.loaded;
  const outer = moduleCall(rank, fqn);
  const inside = outer >= 0 ? tree.children(outer) : tree.roots();
  const forward = inside.filter((call) => PHASES[calls.phase[call]] === "forward");
  const chosen = forward.slice(0, MOST_NODES);
  const builder = new Builder(rank, chosen);
  for (const call of chosen) await builder.addCall(call);
  if (outer >= 0) await builder.addEnds(outer);
  for (const call of chosen) await builder.addInputs(call);
  for (const call of chosen) await builder.addBackward(call);
  return { nodes: builder.usedNodes(), edges: [...builder.edges.values()], leftOut: forward.length - chosen.length };
}

class Builder {
  /**
   * @param {Rank} rank
   * @param {number[]} chosen
   */
  constructor(rank, chosen) {
    this.rank = rank;
    this.chosen = chosen;
    /** @type {Node[]} */
    this.nodes = [];
    /** @type {Map<string, Edge>} */
    this.edges = new Map();
    /** @type {Map<number, string>} values that come into the module, by node */
    this.given = new Map();
  }

  /** @param {number} call */
  async addCall(call) {
    const { calls } = this.rank.loaded;
    const kind = calls.kind(call) === "module" ? "module" : "call";
    const args = await this.rank.arguments(call);
    const name = calls.name(call).replace(/\.forward$/, "");
    const title = kind === "module" ? calls.fqn(call).split(".").slice(-2).join(".") || name : name;
    this.nodes.push({ id: String(call), kind, call, title, type: args.result });
  }

  /** @param {number} outer */
  async addEnds(outer) {
    const args = await this.rank.arguments(outer);
    for (const [slot, value] of args.of("input")) {
      this.nodes.push({ id: slot, kind: "input", call: -1, title: slot, type: value.signature.text });
      this.given.set(value.index, slot);
    }
    for (const [slot, value] of args.of("output")) {
      this.nodes.push({ id: slot, kind: "output", call: -1, title: slot, type: value.signature.text });
      const { producer } = await this.rank.uses(value.index);
      const from = this.nodeOf(producer);
      if (from) this.addEdge(from, slot, value.signature.text, false);
    }
  }

  /**
   * Return the node that a call is in.
   * @param {number} call
   */
  nodeOf(call) {
    if (call < 0) return null;
    const { tree } = this.rank.loaded;
    const place = tree.place[call];
    const found = this.chosen.find((node) => tree.place[node] <= place && place < tree.place[node] + tree.size[node]);
    return found === undefined ? null : String(found);
  }

  /** @param {number} call */
  async addInputs(call) {
    const args = await this.rank.arguments(call);
    for (const [, value] of args.of("input")) {
      const { producer } = await this.rank.uses(value.index);
      const from = this.given.get(value.index) ?? this.nodeOf(producer);
      if (from && from !== String(call)) this.addEdge(from, String(call), value.signature.text, false);
    }
  }

  /**
   * Add the gradients that the backward of a call sends to that of another.
   * @param {number} call
   */
  async addBackward(call) {
    const { calls, tree } = this.rank.loaded;
    const belonging = [];
    for (let at = tree.place[call]; at < tree.place[call] + tree.size[call]; at++) belonging.push(...this.rank.belongingTo(tree.order[at]));
    for (const backward of belonging.filter((one) => PHASES[calls.phase[one]] === "backward").slice(0, 200)) {
      const args = await this.rank.arguments(backward);
      for (const [, value] of args.of("output")) {
        const { consumers } = await this.rank.uses(value.index);
        for (const consumer of consumers.slice(0, 50)) {
          const to = this.nodeOf(this.forwardOf(consumer));
          // Sums of gradients at a fork belong to one of its ends: only the way back along a value is drawn.
          if (to && this.edges.has(`${to} ${call} false`)) this.addEdge(String(call), to, value.signature.text, true);
        }
      }
    }
  }

  /** @param {number} call */
  forwardOf(call) {
    const { calls } = this.rank.loaded;
    return PHASES[calls.phase[call]] === "backward" ? calls.forward[call] : -1;
  }

  /**
   * @param {string} from
   * @param {string} to
   * @param {string} text
   * @param {boolean} isBackward
   */
  addEdge(from, to, text, isBackward) {
    const key = `${from} ${to} ${isBackward}`;
    if (!this.edges.has(key)) this.edges.set(key, { from, to, text, isBackward });
  }

  /** Nodes without ends of the module that nothing here touches. */
  usedNodes() {
    const used = new Set([...this.edges.values()].flatMap(({ from, to }) => [from, to]));
    return this.nodes.filter(({ id, kind }) => kind === "call" || kind === "module" || used.has(id));
  }
}
