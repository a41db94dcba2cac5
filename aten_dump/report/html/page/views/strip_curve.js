/** The curve of errors over the execution order: forward and backward apart, and the noise floor. */

/** @typedef {import("./strip_layout.js").StripLayout} StripLayout */
/** @typedef {{x: number, number: number}[]} Points ascending in x */
/** @typedef {{forward: Points, optimizer: Points, backward: Points, floor: Points}} Curves */

/**
 * Return the curves of a comparison; null where nothing was measured.
 * @param {StripLayout} layout
 * @returns {Curves | null}
 */
export function curvesOf(layout) {
  const { judged } = layout.rank.loaded;
  if (!judged) return null;
  /** @type {Curves} */
  const curves = { forward: [], optimizer: [], backward: [], floor: [] };
  for (const call of layout.leaves) {
    if (layout.end[call] === layout.start[call]) continue;
    const x = (layout.start[call] + layout.end[call]) / 2;
    const line = layout.lane[call] < 0 ? curves.backward : x > layout.forwardWidth ? curves.optimizer : curves.forward;
    if (judged.error[call] > 0) line.push({ x, number: judged.error[call] });
    if (judged.floor[call] > 0) curves.floor.push({ x, number: judged.floor[call] });
  }
  for (const points of Object.values(curves)) points.sort((one, other) => one.x - other.x);
  return curves.forward.length + curves.backward.length + curves.optimizer.length ? curves : null;
}

/**
 * Return the powers of ten between which the curves lie.
 * @param {Curves} curves
 */
export function decadesOf(curves) {
  let [low, high] = [Infinity, -Infinity];
  for (const points of Object.values(curves)) {
    for (const { number } of points) {
      if (!Number.isFinite(number)) continue;
      low = Math.min(low, number);
      high = Math.max(high, number);
    }
  }
  if (!(low <= high)) return { low: -8, high: 0 };
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  return { low: from, high: Math.max(to, from + 1) };
}

/**
 * Return what of a curve is seen: of each pixel the greatest.
 * @param {{from: number, to: number}} range
 * @param {Points} points
 * @param {number} width in pixels
 * @returns {[number, number][]} pixel, number
 */
export function curvePoints({ from, to }, points, width) {
  /** @type {[number, number][]} */
  const found = [];
  for (const { x, number } of points) {
    const pixel = Math.round(((x - from) / (to - from)) * width);
    if (pixel < -width || pixel > 2 * width || !Number.isFinite(number)) continue;
    const last = found.at(-1);
    if (last && last[0] === pixel) last[1] = Math.max(last[1], number);
    else found.push([pixel, number]);
  }
  return found;
}
