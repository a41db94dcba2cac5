/** All calls of a step and rank: names, tree, phases, sources. Calls go by position, the order in which they began. */

import { formatNs } from "./numbers.js";

/** @typedef {import("./columns.js").Section} Section */
/** @typedef {{file: string, line: number, function: string, user: boolean}} Frame */
/** @typedef {{graph: string, nodes: [name: string, op: string, reads: string, made: string, source: string][]}} Kernel */

export const PHASES = ["forward", "recompute", "backward", "optimizer"];
export const KINDS = ["aten", "api", "module", "node"];
export const FORWARD = 0;
export const RECOMPUTE = 1;
export const BACKWARD = 2;
export const OPTIMIZER = 3;

export class Calls {
  /** @param {Section} section */
  constructor(section) {
    this.op = section.integers("op");
    this.phase = section.integers("phase");
    this.repeat = section.integers("repeat");
    this.thread = section.integers("thread");
    this.module = section.integers("module");
    this.forward = section.integers("forward");
    this.startUs = section.integers("start_us");
    this.stack = section.integers("stack");
    this.count = this.op.length;
    /** @type {{head: string, op: string, kind: string, arguments: string[]}[]} */
    this.ops = section.json.ops.map((/** @type {[string, string, string, string[]]} */ [head, op, kind, args]) => ({ head, op, kind, arguments: args }));
    /** @type {Record<number, Kernel>} what kernels of compiled code compute, by the number of their op */
    this.kernels = section.json.kernels;
    /** @type {string[]} */
    this.modules = section.json.modules;
    /** @type {Set<number>} */
    this.unfinished = new Set(section.json.unfinished);
    this.ids = section.integers("id");
    this.durationDigits = section.integers("duration.digits");
    this.durationExponent = section.integers("duration.exponent");
    this.parent = parents(section.integers("parent"));
    this.number = numbers(section.integers("number"), this);
    this.chainParent = section.integers("chain.parent");
    this.chainFrame = section.integers("chain.frame");
    this.frames = frames(section);
    this.sources = this.chainFrame.length ? innermostUserFrames(this) : [];
  }

  /** @param {number} call */
  name(call) {
    const repeat = this.repeat[call];
    const name = `${this.ops[this.op[call]].head}.${this.number[call]}.${PHASES[this.phase[call]]}`;
    return repeat ? `${name}.${repeat}` : name;
  }

  /**
   * @param {string} name
   * @returns {number} -1 where there is none
   */
  find(name) {
    const heads = this.ops.map(({ head }) => name.startsWith(`${head}.`));
    for (let call = 0; call < this.count; call++) if (heads[this.op[call]] && this.name(call) === name) return call;
    return -1;
  }

  /** @param {number} call */
  kind(call) {
    return this.ops[this.op[call]].kind;
  }

  /**
   * @param {number} call
   * @returns {Kernel | undefined} what it computes, if it is a kernel of compiled code
   */
  kernel(call) {
    return this.kernels[this.op[call]];
  }

  /** @param {number} call */
  fqn(call) {
    return this.modules[this.module[call]];
  }

  /** @param {number} call */
  durationNs(call) {
    return this.durationDigits[call] * 10 ** this.durationExponent[call];
  }

  /** @param {number} call */
  duration(call) {
    if (this.unfinished.has(call)) return "cut short";
    return this.durationNs(call) ? formatNs(this.durationNs(call)) : ""; // nobody recorded it
  }

  /**
   * @param {number} call
   * @returns {Frame[]} innermost first
   */
  frameList(call) {
    const found = [];
    for (let chain = this.stack[call]; chain > 0; chain = this.chainParent[chain]) {
      found.push(this.frames[this.chainFrame[chain]]);
    }
    return found;
  }

  /**
   * @param {number} call
   * @returns {string} "train.py:42" of the innermost line of the user's, "" where it is unknown
   */
  source(call) {
    return this.sources[this.stack[call]] ?? "";
  }
}

/** @param {Int32Array | Float64Array} distances to the parent, 0 for none */
function parents(distances) {
  const found = new Int32Array(distances.length);
  for (let call = 0; call < found.length; call++) found[call] = distances[call] ? call - distances[call] : -1;
  return found;
}

/**
 * Undo payload/call_tree.py: numbers are differences within calls of one head and phase.
 * @param {Int32Array | Float64Array} steps
 * @param {Calls} calls
 */
function numbers(steps, calls) {
  const heads = new Map();
  const headOf = calls.ops.map(({ head }) => heads.set(head, heads.get(head) ?? heads.size).get(head));
  const last = new Int32Array(heads.size * PHASES.length).fill(-1);
  const found = new Int32Array(steps.length);
  for (let call = 0; call < found.length; call++) {
    const key = headOf[calls.op[call]] * PHASES.length + calls.phase[call];
    found[call] = last[key] = last[key] + 1 + steps[call];
  }
  return found;
}

/**
 * @param {Section} section
 * @returns {Frame[]}
 */
function frames(section) {
  const [file, line, name, user] = ["file", "line", "function", "user"].map((part) => section.integers(`frame.${part}`));
  const texts = section.json.texts;
  return Array.from(file, (_, i) => ({ file: texts[file[i]], line: line[i], function: texts[name[i]], user: user[i] === 1 }));
}

/** @param {Calls} calls */
function innermostUserFrames(calls) {
  const found = [""];
  for (let chain = 1; chain < calls.chainFrame.length; chain++) {
    const frame = calls.frames[calls.chainFrame[chain]];
    found.push(frame.user ? `${frame.file}:${frame.line}` : found[calls.chainParent[chain]]);
  }
  return found;
}
