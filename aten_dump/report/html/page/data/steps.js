/** Numbers over the recorded steps. */

/** @typedef {import("./columns.js").Section} Section */
/** @typedef {import("./columns.js").Decimals} Decimals */

export class StepSeries {
  /** @param {Section} section */
  constructor(section) {
    /** @type {number[]} */
    this.steps = section.json.steps;
    /** @type {number[]} */
    this.ranks = section.json.ranks;
    /** @type {[string, string][]} name and group */
    this.series = section.json.series;
    /** @type {string[]} */
    this.statistics = section.json.statistics;
    /** @type {Map<string, Decimals>} */
    this.numbers = new Map(this.statistics.map((name) => [name, section.decimals(name)]));
    this.places = new Map(this.series.map(([name], i) => [name, i]));
  }

  /** @param {string} group */
  names(group) {
    return this.series.filter(([, other]) => other === group).map(([name]) => name);
  }

  get groups() {
    return [...new Set(this.series.map(([, group]) => group))];
  }

  /**
   * @param {string} name of a series
   * @param {number} rank
   * @param {string} statistic
   * @returns {(number | null)[]} by step
   */
  line(name, rank, statistic) {
    const numbers = this.numbers.get(statistic);
    const at = this.places.get(name);
    const row = this.ranks.indexOf(rank);
    if (!numbers || at === undefined || row < 0) return this.steps.map(() => null);
    const start = (at * this.ranks.length + row) * this.steps.length;
    return this.steps.map((_, i) => numbers.number(start + i));
  }

  /**
   * Gradient norms of modules: of all parameters in each together.
   * @param {number} rank
   * @param {number} depth of the modules' paths
   * @returns {Map<string, (number | null)[]>}
   */
  moduleNorms(rank, depth) {
    /** @type {Map<string, (number | null)[]>} */
    const squares = new Map();
    for (const name of this.names("gradients")) {
      const module = name.split(".").slice(0, -1).slice(0, depth).join(".") || "(root)";
      const sums = squares.get(module) ?? this.steps.map(() => null);
      this.line(name, rank, "l2norm").forEach((norm, i) => { if (norm !== null) sums[i] = (sums[i] ?? 0) + norm * norm; });
      squares.set(module, sums);
    }
    return new Map([...squares].map(([module, sums]) => [module, sums.map((sum) => sum === null ? null : Math.sqrt(sum))]));
  }
}
