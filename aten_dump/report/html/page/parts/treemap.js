/** A squarified treemap: areas as shares of a whole. */

/** @typedef {{x: number, y: number, width: number, height: number}} Rectangle */
/** @template T @typedef {{item: T, size: number}} Sized */

/**
 * Lay sizes into a rectangle, so that each is as near a square as may be.
 * @template T
 * @param {Sized<T>[]} sized
 * @param {Rectangle} room
 * @returns {(Rectangle & {item: T, size: number})[]}
 */
export function squarified(sized, room) {
  const sorted = sized.filter(({ size }) => size > 0).sort((one, other) => other.size - one.size);
  const total = sorted.reduce((sum, { size }) => sum + size, 0);
  const scale = total ? (room.width * room.height) / total : 0;
  const found = [];
  let left = { ...room };
  for (let start = 0; start < sorted.length; ) {
    const side = Math.min(left.width, left.height);
    let end = start + 1;
    while (end < sorted.length && worst(sorted, start, end + 1, side, scale) <= worst(sorted, start, end, side, scale)) end++;
    const row = sorted.slice(start, end);
    const depth = side ? row.reduce((sum, { size }) => sum + size * scale, 0) / side : 0;
    const isWide = left.width >= left.height;
    let at = isWide ? left.y : left.x;
    for (const { item, size } of row) {
      const length = depth ? (size * scale) / depth : 0;
      found.push(isWide ? { item, size, x: left.x, y: at, width: depth, height: length } : { item, size, x: at, y: left.y, width: length, height: depth });
      at += length;
    }
    left = isWide ? { ...left, x: left.x + depth, width: left.width - depth } : { ...left, y: left.y + depth, height: left.height - depth };
    start = end;
  }
  return found;
}

/**
 * @param {{size: number}[]} sorted
 * @param {number} start
 * @param {number} end
 * @param {number} side
 * @param {number} scale
 */
function worst(sorted, start, end, side, scale) {
  const areas = sorted.slice(start, end).map(({ size }) => size * scale);
  const sum = areas.reduce((all, area) => all + area, 0);
  return Math.max((side * side * areas[0]) / (sum * sum), (sum * sum) / (side * side * areas[areas.length - 1]));
}
