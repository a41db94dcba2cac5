/** The order in which a tree of calls is read: each call before those in it. */

export class Tree {
  /** @param {Int32Array} parent position of each call's parent, before it; -1 at the root */
  constructor(parent) {
    const count = parent.length;
    this.parent = parent;
    /** Calls in a call, itself included. */
    this.size = new Int32Array(count).fill(1);
    for (let call = count - 1; call >= 0; call--) if (parent[call] >= 0) this.size[parent[call]] += this.size[call];
    this.depth = new Int32Array(count);
    /** The calls in reading order, and the place of each in it. */
    this.order = new Int32Array(count);
    this.place = new Int32Array(count);
    const free = new Int32Array(count);
    let freeRoot = 0;
    for (let call = 0; call < count; call++) {
      const outer = parent[call];
      const place = outer < 0 ? freeRoot : free[outer];
      if (outer < 0) freeRoot += this.size[call];
      else free[outer] += this.size[call];
      this.depth[call] = outer < 0 ? 0 : this.depth[outer] + 1;
      this.place[call] = place;
      this.order[place] = call;
      free[call] = place + 1;
    }
  }

  /** @param {number} call */
  children(call) {
    const found = [];
    const end = this.place[call] + this.size[call];
    for (let at = this.place[call] + 1; at < end; at += this.size[this.order[at]]) found.push(this.order[at]);
    return found;
  }

  roots() {
    const found = [];
    for (let at = 0; at < this.order.length; at += this.size[this.order[at]]) found.push(this.order[at]);
    return found;
  }

  /**
   * Return the rows to show: calls in reading order, without what is in a closed one.
   * @param {Uint8Array} open by call
   * @param {Uint8Array | null} shown by call; null is all
   */
  rows(open, shown) {
    const rows = new Int32Array(this.order.length);
    let count = 0;
    for (let at = 0; at < this.order.length; ) {
      const call = this.order[at];
      const isShown = !shown || shown[call] !== 0;
      if (isShown) rows[count++] = call;
      at += isShown && open[call] ? 1 : this.size[call];
    }
    return rows.subarray(0, count);
  }

  /**
   * Return which calls to show so that each match has its place: itself and those around it.
   * @param {Uint8Array} matched by call
   */
  withOuter(matched) {
    const shown = matched.slice();
    for (let call = shown.length - 1; call >= 0; call--) {
      if (shown[call] && this.parent[call] >= 0) shown[this.parent[call]] = 1;
    }
    return shown;
  }
}
