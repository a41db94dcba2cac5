/** A small histogram: where the elements of a tensor lie. */

import { formatNumber } from "../data/numbers.js";
import { svg } from "../frame/dom.js";

const WIDTH = 96;
const HEIGHT = 22;

/** @typedef {{low: number, high: number, bars: number[], sampled?: number}} Histogram bars are shares of the highest, 0 to 1; `sampled` elements were looked at, 0 for all */

/** @param {Histogram | null} found */
export function histogram(found) {
  if (!found) return null;
  const { low, high, bars, sampled } = found;
  const width = WIDTH / bars.length;
  const label = `Histogram from ${formatNumber(low)} to ${formatNumber(high)}${sampled ? `, of a sample of ${sampled.toLocaleString("en")} elements` : ""}`;
  const zero = low < 0 && high > 0 ? (-low / (high - low)) * WIDTH : null;
  return svg("svg", { class: "histogram", width: WIDTH, height: HEIGHT + 1, viewBox: `0 0 ${WIDTH} ${HEIGHT + 1}`, role: "img", "aria-label": label },
    svg("title", {}, label),
    bars.map((bar, i) => bar > 0 ? svg("rect", { x: i * width, width: Math.max(width - 0.75, 0.5), y: HEIGHT - Math.max(bar * HEIGHT, 1), height: Math.max(bar * HEIGHT, 1) }) : null),
    zero === null ? null : svg("line", { class: "zero", x1: zero, x2: zero, y1: HEIGHT - 3, y2: HEIGHT + 1 }));
}
