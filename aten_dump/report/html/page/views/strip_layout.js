/**
 * Where calls lie on the strip.
 *
 * Forward goes from left to right above the axis, in execution order. What belongs to it in backward lies below, under
 * the forward call that it belongs to, so that backward runs from right to left: the mirror of forward. The optimizer
 * follows on the right, narrower where it is long. One unit of x is one innermost forward call.
 */

import { BACKWARD, OPTIMIZER, RECOMPUTE } from "../data/calls.js";

/** @typedef {import("../data/rank.js").Rank} Rank */

const MOST_OPTIMIZER = 0.25; // of the width of forward

export class StripLayout {
  /** @param {Rank} rank loaded */
  constructor(rank) {
    const { calls, tree } = rank.loaded;
    this.rank = rank;
    /** Ends of each call on the x axis; equal where it is not on the strip. */
    this.start = new Float64Array(calls.count);
    this.end = new Float64Array(calls.count);
    /** 1 above the axis, -1 below. */
    this.lane = new Int8Array(calls.count);
    this.leaves = Int32Array.from(leavesOf(tree.size));
    for (let call = 0; call < calls.count; call++) this.lane[call] = isBelow(calls.phase[call]) ? -1 : 1;
    this.forwardWidth = this.layForward();
    this.width = this.layOptimizer(this.forwardWidth);
    this.layOuter(1);
    this.layBackward();
    this.layOuter(-1);
    this.width = Math.max(this.width, 1);
  }

  layForward() {
    const { calls } = this.rank.loaded;
    let x = 0;
    for (const call of this.leaves) if (this.lane[call] > 0 && calls.phase[call] !== OPTIMIZER) this.lay(call, x++, 1);
    return x;
  }

  /** @param {number} x where forward ends */
  layOptimizer(x) {
    const { calls } = this.rank.loaded;
    const found = this.leaves.filter((call) => calls.phase[call] === OPTIMIZER);
    if (!found.length) return x;
    const gap = x * 0.01;
    const width = x ? Math.min(1, (MOST_OPTIMIZER * x) / found.length) : 1;
    for (let i = 0; i < found.length; i++) this.lay(found[i], x + gap + i * width, width);
    return x + gap + found.length * width;
  }

  /**
   * @param {number} call
   * @param {number} x
   * @param {number} width
   */
  lay(call, x, width) {
    this.start[call] = x;
    this.end[call] = x + width;
  }

  /**
   * Calls that ran others span them, if they lie on the same side.
   * @param {number} lane
   */
  layOuter(lane) {
    const { parent } = this.rank.loaded.calls;
    for (let call = parent.length - 1; call >= 0; call--) {
      const outer = parent[call];
      if (outer < 0 || this.lane[call] !== lane || this.lane[outer] !== lane || this.end[call] === this.start[call]) continue;
      const isEmpty = this.end[outer] === this.start[outer];
      this.start[outer] = isEmpty ? this.start[call] : Math.min(this.start[outer], this.start[call]);
      this.end[outer] = isEmpty ? this.end[call] : Math.max(this.end[outer], this.end[call]);
    }
  }

  layBackward() {
    const below = this.leaves.filter((call) => this.lane[call] < 0);
    /** @type {Map<number, number[]>} calls below by the forward call over them */
    const groups = new Map();
    let anchor = -1;
    for (const call of below) {
      const found = this.anchorOf(call);
      anchor = found >= 0 ? found : anchor;
      const group = groups.get(anchor);
      if (group) group.push(call);
      else groups.set(anchor, [call]);
    }
    for (const [over, group] of groups) {
      const [from, to] = over >= 0 ? [this.start[over], this.end[over]] : [0, this.forwardWidth || group.length];
      const width = (to - from) / group.length;
      group.forEach((call, i) => this.lay(call, to - (i + 1) * width, width));
    }
    if (!this.forwardWidth && below.length) this.width = Math.max(this.width, below.length);
  }

  /**
   * Return the outermost call that is no module around the forward call of a call; -1 for none.
   * @param {number} call
   */
  anchorOf(call) {
    const { calls, tree } = this.rank.loaded;
    let found = -1;
    for (let at = call; at >= 0 && found < 0; at = tree.parent[at]) found = calls.forward[at];
    if (found < 0 || this.lane[found] < 0) return -1;
    while (tree.parent[found] >= 0 && calls.kind(tree.parent[found]) !== "module" && this.lane[tree.parent[found]] > 0 && tree.size[tree.parent[found]] < 200) found = tree.parent[found];
    return this.end[found] > this.start[found] ? found : -1;
  }

  /**
   * Return the innermost call at a place.
   * @param {number} x
   * @param {number} lane
   * @returns {number} -1 for none
   */
  at(x, lane) {
    for (const call of this.leaves) if (this.lane[call] === lane && this.start[call] <= x && x < this.end[call]) return call;
    return -1;
  }
}

/** @param {number} phase */
function isBelow(phase) {
  return phase === BACKWARD || phase === RECOMPUTE;
}

/** @param {Int32Array} size of each call's tree */
function* leavesOf(size) {
  for (let call = 0; call < size.length; call++) if (size[call] === 1) yield call;
}

/**
 * Return the modules over the strip: for some levels of their paths, where each begins and ends.
 * @param {StripLayout} layout
 * @returns {{name: string, fqn: string, start: number, end: number}[][]} from the outside in
 */
export function moduleBands(layout) {
  const { calls } = layout.rank.loaded;
  const forward = layout.leaves.filter((call) => layout.lane[call] > 0 && layout.end[call] <= layout.forwardWidth);
  const paths = calls.modules.map((fqn) => fqn.split("."));
  const levels = [];
  for (let depth = 1; depth <= 8 && levels.length < 3; depth++) {
    /** @type {{name: string, fqn: string, start: number, end: number}[]} */
    const runs = [];
    for (const call of forward) {
      const path = paths[calls.module[call]];
      if (path.length < depth || path[0] === "") continue;
      const fqn = path.slice(0, depth).join(".");
      const last = runs.at(-1);
      if (last && last.fqn === fqn && last.end === layout.start[call]) last.end = layout.end[call];
      else runs.push({ name: path[depth - 1], fqn, start: layout.start[call], end: layout.end[call] });
    }
    if (runs.length > 1 && runs.some(({ name }) => !/^\d+$/.test(name) || runs.length > 1)) levels.push(runs);
  }
  return levels;
}
