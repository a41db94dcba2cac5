/** A 2-D slice of a tensor as colours: blue below zero, red above, the same distance from grey on both sides. */

import { h } from "../frame/dom.js";

const MIDDLE = 127;
const NONFINITE = 255;
const LEAST = 3; // pixels of a cell, where there is room
const MOST = 28;
const HEIGHT = 420; // beyond, cells become small

/**
 * @typedef {object} HeatMap
 * @property {Int32Array | Float64Array} codes of colours, 0 to 254 with zero in the middle, 255 for NaN and Inf
 * @property {[number, number]} cells rows and columns
 * @property {[number, number]} shape elements
 * @property {string} label
 */

/**
 * @param {HeatMap} map
 * @param {number} width available
 * @param {(row: number, column: number) => void} look at an element
 * @param {(row: number, column: number, end: [number, number]) => void} onPoint shows where the pointer is
 */
export function heatMap(map, width, look, onPoint) {
  const [rows, columns] = map.cells;
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "heat-map", role: "img", "aria-label": map.label, width: columns, height: rows }));
  const widest = width / Math.max(columns, 1);
  const size = Math.min(widest, MOST, Math.max(LEAST, HEIGHT / Math.max(rows, 1)));
  canvas.style.width = `${columns * size}px`;
  canvas.style.height = `${Math.max(rows * size, 16)}px`;
  paint(canvas, map);
  const place = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.min(Math.floor(((event.clientY - box.top) / box.height) * rows), rows - 1);
    const column = Math.min(Math.floor(((event.clientX - box.left) / box.width) * columns), columns - 1);
    return [Math.max(row, 0), Math.max(column, 0)];
  };
  const first = (/** @type {number} */ cell, /** @type {0 | 1} */ side) => Math.floor((cell * map.shape[side]) / map.cells[side]);
  canvas.addEventListener("click", (event) => {
    const [row, column] = place(event);
    look(first(row, 0), first(column, 1));
  });
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = place(event);
    onPoint(first(row, 0), first(column, 1), [Math.ceil(((row + 1) * map.shape[0]) / rows) - 1, Math.ceil(((column + 1) * map.shape[1]) / columns) - 1]);
  });
  return canvas;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {HeatMap} map
 */
function paint(canvas, map) {
  const context = canvas.getContext("2d");
  const [rows, columns] = map.cells;
  if (!context || !rows || !columns) return;
  const table = colours();
  const image = context.createImageData(columns, rows);
  map.codes.forEach((code, at) => image.data.set(table[code], at * 4));
  context.putImageData(image, 0, 0);
}

/** @returns {number[][]} red, green, blue, opacity of each code */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const [negative, zero, positive, nonfinite] = ["negative", "zero", "positive", "nonfinite"].map((name) => rgb(style.getPropertyValue(`--map-${name}`)));
  return Array.from({ length: 256 }, (_, code) => {
    if (code === NONFINITE) return [...nonfinite, 255];
    const share = Math.sqrt(Math.abs(code - MIDDLE) / MIDDLE);
    const end = code < MIDDLE ? negative : positive;
    return [...zero.map((part, i) => part + (end[i] - part) * share), 255];
  });
}

/** @param {string} text "#rrggbb" */
function rgb(text) {
  const number = parseInt(text.trim().slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}
