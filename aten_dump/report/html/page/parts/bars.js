/** A histogram with room: bars between the least and the greatest element, on a logarithmic height where asked for. */

import { h, svg } from "../frame/dom.js";

const WIDTH = 640;
const HEIGHT = 120;

/**
 * @param {ArrayLike<number>} counts
 * @param {string} low as text
 * @param {string} high
 */
export function bars(counts, low, high) {
  const greatest = Math.max(...Array.from(counts), 1);
  const width = WIDTH / Math.max(counts.length, 1);
  const height = (/** @type {number} */ count) => (Math.log1p(count) / Math.log1p(greatest)) * HEIGHT;
  const label = `Histogram from ${low} to ${high}, heights logarithmic`;
  const shown = Array.from(counts, (count, i) => count > 0 ? svg("rect", { x: i * width, width: Math.max(width - 1, 0.5), y: HEIGHT - Math.max(height(count), 1), height: Math.max(height(count), 1) },
    svg("title", {}, `${count.toLocaleString("en")} elements`)) : null);
  return h("div", { class: "bars" },
    svg("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, shown),
    h("p", { class: "bars-ends mono" }, h("span", {}, low), h("span", { class: "muted" }, "heights logarithmic"), h("span", {}, high)));
}
