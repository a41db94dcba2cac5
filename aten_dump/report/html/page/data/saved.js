/** What forward keeps alive for backward. */

/** @typedef {import("./columns.js").Section} Section */

export class SavedMemory {
  /**
   * @param {Section} section
   * @param {number} count calls of the step
   */
  constructor(section, count) {
    /** @type {string[]} */
    this.nodes = section.json.nodes;
    this.nbytes = section.integers("nbytes");
    this.keeper = section.integers("keeper");
    this.node = section.integers("node");
    this.outside = section.integers("outside");
    this.until = section.integers("until");
    this.count = count;
  }

  /** @param {boolean} withOutside parameters, buffers and inputs too */
  total(withOutside) {
    let sum = 0;
    for (let i = 0; i < this.nbytes.length; i++) if (withOutside || !this.outside[i]) sum += this.nbytes[i];
    return sum;
  }

  /**
   * Return the bytes that are kept over the execution order.
   * @returns {{call: number, nbytes: number}[]} after each change
   */
  curve() {
    /** @type {Map<number, number>} */
    const changes = new Map();
    for (let i = 0; i < this.nbytes.length; i++) {
      if (this.outside[i]) continue;
      changes.set(this.keeper[i], (changes.get(this.keeper[i]) ?? 0) + this.nbytes[i]);
      if (this.until[i] < this.count) changes.set(this.until[i], (changes.get(this.until[i]) ?? 0) - this.nbytes[i]);
    }
    let nbytes = 0;
    const points = [...changes].sort(([one], [other]) => one - other).map(([call, change]) => ({ call, nbytes: (nbytes += change) }));
    return [{ call: 0, nbytes: 0 }, ...points, { call: this.count, nbytes }];
  }

  /**
   * Return the bytes by module, each storage counted for the call that kept it first.
   * @param {(call: number) => string} fqnOf
   * @returns {Map<string, number>}
   */
  byModule(fqnOf) {
    /** @type {Map<string, number>} */
    const found = new Map();
    for (let i = 0; i < this.nbytes.length; i++) {
      if (this.outside[i]) continue;
      const fqn = fqnOf(this.keeper[i]);
      found.set(fqn, (found.get(fqn) ?? 0) + this.nbytes[i]);
    }
    return found;
  }
}
