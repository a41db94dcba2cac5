/** Draws the strip on a canvas: modules above, forward, axis, backward mirrored, the curve of errors. */

import { themeColour } from "../frame/theme.js";
import { curvePoints, decadesOf } from "./strip_curve.js";

/** @typedef {import("./strip_layout.js").StripLayout} StripLayout */
/** @typedef {import("./strip_values.js").Painting} Painting */
/** @typedef {import("./strip_curve.js").Curves} Curves */

export const BAND = 18;
export const LANE = 110;
const GAP = 16;
const CURVE = 150;
const LABEL_FONT = "11px system-ui, sans-serif";

/**
 * @typedef {object} Scene
 * @property {StripLayout} layout
 * @property {{name: string, fqn: string, start: number, end: number}[][]} bands
 * @property {Painting} painting
 * @property {Curves | null} curves
 * @property {Uint8Array | null} matched by call
 * @property {number} selected
 * @property {number} cause call that is the first cause, -1 for none
 * @property {number} from left end of what is seen
 * @property {number} to right end
 */

export class StripCanvas {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.width = 0;
  }

  /** @param {Scene} scene */
  axisOf(scene) {
    return scene.bands.length * BAND + GAP + LANE;
  }

  /** @param {Scene} scene */
  heightOf(scene) {
    return this.axisOf(scene) + LANE + GAP + (scene.curves ? CURVE + GAP : 0);
  }

  /** @param {Scene} scene */
  draw(scene) {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.heightOf(scene);
    this.canvas.style.height = `${height}px`;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    this.width = width;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.drawBands(scene);
    this.drawLanes(scene);
    this.drawSelected(scene);
    this.drawCause(scene);
    if (scene.curves) this.drawCurves(scene, scene.curves, this.axisOf(scene) + LANE + GAP);
  }

  /**
   * @param {Scene} scene
   * @param {number} x
   */
  pixel({ from, to }, x) {
    return ((x - from) / (to - from)) * this.width;
  }

  /** @param {Scene} scene */
  drawBands(scene) {
    const { context } = this;
    context.font = LABEL_FONT;
    context.textBaseline = "middle";
    scene.bands.forEach((runs, level) => {
      for (const { name, start, end } of runs) {
        const [left, right] = [this.pixel(scene, start), this.pixel(scene, end)];
        if (right < 0 || left > this.width || right - left < 0.7) continue;
        context.fillStyle = themeColour("sunken");
        context.fillRect(left + 0.5, level * BAND + 1, Math.max(right - left - 1, 0.5), BAND - 3);
        const seen = Math.max(left, 0);
        const room = Math.min(right, this.width) - seen - 8;
        if (room < 14) continue;
        context.fillStyle = themeColour("muted");
        const text = fitted(context, name, room);
        if (text) context.fillText(text, seen + 4, level * BAND + BAND / 2);
      }
    });
  }

  /** @param {Scene} scene */
  drawLanes(scene) {
    const { layout, painting, matched, from, to } = scene;
    const axis = this.axisOf(scene);
    const columns = { above: this.columns(), below: this.columns() };
    const scale = this.width / (to - from);
    for (const call of layout.leaves) {
      const [start, end] = [layout.start[call], layout.end[call]];
      if (end <= from || start >= to || end === start) continue;
      const dimmed = matched !== null && matched[call] === 0;
      const side = layout.lane[call] > 0 ? columns.above : columns.below;
      const first = Math.max(0, Math.floor((start - from) * scale));
      const last = Math.max(first + 1, Math.min(this.width, Math.ceil((end - from) * scale - ((end - start) * scale > 3 ? 1 : 0))));
      const key = dimmed ? 0 : painting.colour[call] + 1;
      for (let x = first; x < last; x++) {
        if (key < side.colour[x] || (key === side.colour[x] && painting.height[call] <= side.height[x])) continue;
        side.colour[x] = key;
        side.height[x] = painting.height[call];
      }
    }
    const colours = [themeColour("line"), ...painting.colours.map(themeColour)];
    this.paint(columns.above, colours, axis, -LANE);
    this.paint(columns.below, colours, axis + 1, LANE);
    this.context.fillStyle = themeColour("line-strong");
    this.context.fillRect(0, axis, this.width, 1);
  }

  columns() {
    return { colour: new Int16Array(this.width + 1).fill(-1), height: new Float32Array(this.width + 1) };
  }

  /**
   * @param {{colour: Int16Array, height: Float32Array}} columns
   * @param {string[]} colours
   * @param {number} axis
   * @param {number} lane height, negative upwards
   */
  paint(columns, colours, axis, lane) {
    const { context } = this;
    for (let x = 0; x < this.width; ) {
      const [key, height] = [columns.colour[x], columns.height[x]];
      let end = x + 1;
      while (end < this.width && columns.colour[end] === key && columns.height[end] === height) end++;
      if (key >= 0 && height > 0) {
        context.fillStyle = colours[key];
        context.fillRect(x, lane < 0 ? axis + lane * height : axis, end - x, Math.abs(lane * height));
      }
      x = end;
    }
  }

  /** @param {Scene} scene */
  drawSelected(scene) {
    const { layout, selected } = scene;
    if (selected < 0 || layout.end[selected] === layout.start[selected]) return;
    const axis = this.axisOf(scene);
    const left = this.pixel(scene, layout.start[selected]);
    const width = Math.max(this.pixel(scene, layout.end[selected]) - left, 2);
    this.context.strokeStyle = themeColour("text");
    this.context.lineWidth = 1.5;
    const top = layout.lane[selected] > 0 ? axis - LANE : axis + 1;
    this.context.strokeRect(left - 1, top, width + 2, LANE);
  }

  /** @param {Scene} scene */
  drawCause(scene) {
    const { context } = this;
    const { layout, cause } = scene;
    if (cause < 0 || layout.end[cause] === layout.start[cause]) return;
    const x = Math.round(this.pixel(scene, (layout.start[cause] + layout.end[cause]) / 2));
    const isAbove = layout.lane[cause] > 0;
    const axis = this.axisOf(scene);
    const tip = isAbove ? axis - LANE : axis + LANE + 1;
    context.fillStyle = themeColour("text");
    context.beginPath();
    context.moveTo(x, tip);
    context.lineTo(x - 4, tip + (isAbove ? -6 : 6));
    context.lineTo(x + 4, tip + (isAbove ? -6 : 6));
    context.fill();
    context.font = LABEL_FONT;
    context.textBaseline = isAbove ? "alphabetic" : "top";
    this.halo("first cause", x + 8, tip + (isAbove ? -1 : 1), "text");
  }

  /**
   * Write over lines.
   * @param {string} text
   * @param {number} x
   * @param {number} y
   * @param {string} ink
   */
  halo(text, x, y, ink) {
    const { context } = this;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = themeColour("surface");
    context.strokeText(text, x, y);
    context.fillStyle = themeColour(ink);
    context.fillText(text, x, y);
  }

  /**
   * @param {Scene} scene
   * @param {Curves} curves
   * @param {number} top
   */
  drawCurves(scene, curves, top) {
    const { context } = this;
    const decades = decadesOf(curves);
    const y = (/** @type {number} */ number) => top + CURVE - ((Math.log10(number) - decades.low) / (decades.high - decades.low)) * CURVE;
    const powers = [];
    for (let power = decades.low; power <= decades.high; power += Math.max(1, Math.ceil((decades.high - decades.low) / 5))) powers.push(power);
    context.fillStyle = themeColour("line");
    for (const power of powers) context.fillRect(0, Math.round(y(10 ** power)), this.width, 1);
    this.line(curvePoints(scene, curves.floor, this.width), y, themeColour("muted"), [3, 3]);
    this.line(curvePoints(scene, curves.backward, this.width), y, themeColour("phase-backward"), []);
    this.line(curvePoints(scene, curves.forward, this.width), y, themeColour("accent"), []);
    this.line(curvePoints(scene, curves.optimizer, this.width), y, themeColour("accent"), []);
    context.font = LABEL_FONT;
    context.textBaseline = "bottom";
    for (const power of powers) this.halo(`1e${power}`, 2, y(10 ** power) - 1, "muted");
  }

  /**
   * @param {[number, number][]} points pixel and number
   * @param {(number: number) => number} y
   * @param {string} stroke
   * @param {number[]} dash
   */
  line(points, y, stroke, dash) {
    const { context } = this;
    context.strokeStyle = stroke;
    context.lineWidth = 1.4;
    context.setLineDash(dash);
    context.beginPath();
    points.forEach(([x, number], i) => i ? context.lineTo(x, y(number)) : context.moveTo(x, y(number)));
    context.stroke();
    context.setLineDash([]);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} room in pixels
 */
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = Math.floor(room / 6.5);
  return letters >= 3 ? `${text.slice(0, letters - 1)}…` : "";
}
