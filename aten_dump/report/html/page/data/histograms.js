/** Histograms of values, as payload/histograms.py makes them. */

/** @typedef {import("../parts/histogram.js").Histogram} Histogram */

const HIGHEST = 15;

export class Histograms {
  /** @param {import("./columns.js").Section} section */
  constructor(section) {
    this.bars = section.json.bars;
    this.low = section.decimals("low");
    this.high = section.decimals("high");
    this.bar = section.integers("bar");
    this.sampled = section.integers("sampled");
    this.rows = new Map(Array.from(section.integers("index"), (index, row) => [index, row]));
  }

  /**
   * @param {number} index of a value
   * @returns {Histogram | null}
   */
  of(index) {
    const row = this.rows.get(index);
    if (row === undefined) return null;
    const bars = Array.from(this.bar.subarray(row * this.bars, (row + 1) * this.bars), (bar) => bar / HIGHEST);
    return { low: this.low.number(row) ?? 0, high: this.high.number(row) ?? 0, bars, sampled: this.sampled[row] };
  }
}
