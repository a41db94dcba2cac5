/** Lines over steps, drawn by uPlot. */

import { formatNumber } from "../data/numbers.js";
import { h } from "../frame/dom.js";
import { themeColour } from "../frame/theme.js";

/** @typedef {{name: string, numbers: (number | null)[], emphasis?: boolean}} Line */

const HEIGHT = 260;

/**
 * Draw lines into an element.
 * @param {HTMLElement} holder
 * @param {number[]} steps
 * @param {Line[]} lines
 * @param {{logarithmic?: boolean, label: string}} options
 * @returns {Promise<() => void>} removes the chart
 */
export async function lineChart(holder, steps, lines, { logarithmic = false, label }) {
  await window.atenDumpScript("uplot");
  if (!holder.isConnected) return () => {};
  const shades = ["accent", "phase-backward", "accent-mid", "phase-optimizer", "muted"];
  const dashes = [[], [6, 3], [2, 3]];
  const axis = { stroke: themeColour("muted"), grid: { stroke: themeColour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const positive = lines.flatMap(({ numbers }) => numbers).filter((number) => number !== null && number > 0 && Number.isFinite(number));
  const isLog = logarithmic && positive.length > 0;
  const data = [steps, ...lines.map(({ numbers }) => numbers.map((number) => number !== null && Number.isFinite(number) && (!isLog || number > 0) ? number : null))];
  const chart = new window.uPlot({
    width: Math.max(holder.clientWidth, 200), height: HEIGHT, cursor: { drag: { x: true, y: false } }, legend: { show: lines.length <= 12 },
    scales: { x: { time: false, ...(steps.length === 1 ? { range: [steps[0] - 1, steps[0] + 1] } : {}) }, y: isLog ? { distr: 3 } : {} },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000, 100000], label: "step", labelSize: 16, labelGap: 2, size: 26, labelFont: axis.font }, { ...axis, size: 70, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => tick === null ? "" : formatNumber(tick, 4)) }],
    series: [{ label: "step" }, ...lines.map(({ name, numbers }, i) => ({
      label: name, stroke: themeColour(shades[i % shades.length]), width: 1.6, dash: dashes[Math.floor(i / shades.length) % dashes.length],
      points: { show: steps.length <= 40, size: 5 }, // Of what is not finite there is no point, but the legend tells it.
      value: (/** @type {any} */ _, /** @type {number | null} */ __, /** @type {number} */ ___, /** @type {number | null} */ at) => at === null ? "" : formatNumber(numbers[at]),
    }))],
    // The legend tells the last step until another is pointed at.
    hooks: { draw: [(/** @type {any} */ drawn) => (drawn.cursor.left ?? -1) < 0 && drawn.setLegend({ idx: steps.length - 1 }, false)] },
  }, data, holder);
  chart.root.setAttribute("role", "img");
  chart.root.setAttribute("aria-label", label);
  const observer = new ResizeObserver(() => chart.setSize({ width: Math.max(holder.clientWidth, 200), height: HEIGHT }));
  observer.observe(holder);
  return () => {
    observer.disconnect();
    chart.destroy();
  };
}

/**
 * The numbers of lines as a table, for those who do not see the chart.
 * @param {number[]} steps
 * @param {Line[]} lines
 */
export function lineTable(steps, lines) {
  return h("details", { class: "line-table" }, h("summary", {}, "Numbers"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers" }, h("table", { class: "facts-table" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "step"), lines.map(({ name }) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, steps.map((step, i) => h("tr", {}, h("th", { scope: "row" }, step), lines.map(({ numbers }) => h("td", { class: "number" }, formatNumber(numbers[i])))))))));
}
