/** Lines over steps, drawn by uPlot. */

import { formatNumber } from "../data/numbers.js";
import { h, replace } from "../frame/dom.js";
import { themeColour } from "../frame/theme.js";

/** @typedef {{name: string, numbers: (number | null)[], emphasis?: boolean}} Line */

const HEIGHT = 260;
const COLOURS = 12; // --line-1 to --line-12 of the theme
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

/**
 * Draw lines into an element.
 * @param {HTMLElement} holder
 * @param {number[]} steps
 * @param {Line[]} lines
 * @param {{logarithmic?: boolean, label: string, marked?: Map<number, string>}} options `marked` is NaN or Inf by step
 * @returns {Promise<() => void>} removes the chart
 */
export async function lineChart(holder, steps, lines, { logarithmic = false, label, marked = new Map() }) {
  await window.atenDumpScript("uplot");
  if (!holder.isConnected) return () => {};
  const axis = { stroke: themeColour("muted"), grid: { stroke: themeColour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const positive = lines.flatMap(({ numbers }) => numbers).filter((number) => number !== null && number > 0 && Number.isFinite(number));
  const isLog = logarithmic && positive.length > 0;
  const data = [steps, ...lines.map(({ numbers }) => numbers.map((number) => number !== null && Number.isFinite(number) && (!isLog || number > 0) ? number : null))];
  const chart = new window.uPlot({
    width: Math.max(holder.clientWidth, 200), height: HEIGHT, cursor: { drag: { x: true, y: false } },
    legend: { markers: { dash: (/** @type {any} */ _, /** @type {number} */ at) => at > COLOURS ? "dashed" : "solid" } },
    scales: { x: { time: false, ...(steps.length === 1 ? { range: [steps[0] - 1, steps[0] + 1] } : {}) }, y: isLog ? { distr: 3 } : {} },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000, 100000], label: "step", labelSize: 16, labelGap: 2, size: 26, labelFont: axis.font }, { ...axis, size: 70, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => tick === null ? "" : formatNumber(tick, 4)) }],
    series: [{ label: "step" }, ...lines.map(({ name, numbers }, i) => ({
      label: name, stroke: themeColour(`line-${i % COLOURS + 1}`), width: 1.6, dash: DASHES[Math.floor(i / COLOURS) % DASHES.length],
      points: { show: steps.length <= 40, size: 5 }, // A number that is not finite has no point, but the legend shows it.
      value: (/** @type {any} */ _, /** @type {number | null} */ __, /** @type {number} */ ___, /** @type {number | null} */ at) => at === null ? "" : formatNumber(numbers[at]),
    }))],
    // The legend shows the last step until the pointer is on another.
    hooks: { drawClear: [(/** @type {any} */ drawn) => drawMarks(drawn, steps, marked)], draw: [(/** @type {any} */ drawn) => (drawn.cursor.left ?? -1) < 0 && drawn.setLegend({ idx: steps.length - 1 }, false)] },
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
 * Draw a band behind each marked step, with a word above it where there is room.
 * @param {any} chart
 * @param {number[]} steps
 * @param {Map<number, string>} marked
 */
function drawMarks(chart, steps, marked) {
  const { ctx, bbox } = chart;
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(3 * ratio, Math.min(28 * ratio, bbox.width / Math.max(steps.length, 1) / 2));
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "top";
  for (const [step, what] of marked) {
    const x = Math.min(Math.max(chart.valToPos(step, "x", true), bbox.left), bbox.left + bbox.width);
    ctx.fillStyle = themeColour("error-4-soft");
    ctx.fillRect(x - width / 2, bbox.top, width, bbox.height);
    ctx.fillStyle = themeColour("error-text");
    if (width >= 20 * ratio) ctx.fillText(what, x, bbox.top + 3 * ratio);
  }
  ctx.restore();
}

/**
 * The numbers of lines as a table, for those who do not see the chart.
 * @param {number[]} steps
 * @param {Line[]} lines
 */
export function lineTable(steps, lines) {
  const holder = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers" });
  // Ten thousand rows take seconds: they are made when somebody looks.
  return h("details", { class: "line-table", ontoggle: () => holder.firstChild || replace(holder, numbersTable(steps, lines)) }, h("summary", {}, "Numbers"), holder);
}

/**
 * @param {number[]} steps
 * @param {Line[]} lines
 */
function numbersTable(steps, lines) {
  return h("table", { class: "facts-table" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "step"), lines.map(({ name }) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, steps.map((step, i) => h("tr", {}, h("th", { scope: "row" }, step), lines.map(({ numbers }) => h("td", { class: "number" }, formatNumber(numbers[i])))))));
}
