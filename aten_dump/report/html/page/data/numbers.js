/** Numbers and units as the command line writes them. */

/**
 * Write a number in so many digits, as Python's "%.6g" does.
 * @param {number | null | undefined} number null is "-"
 * @param {number} [digits]
 * @returns {string}
 */
export function formatNumber(number, digits = 6) {
  if (number === null || number === undefined) return "-";
  if (Number.isNaN(number)) return "nan";
  if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
  if (number === 0) return Object.is(number, -0) ? "-0" : "0";
  const [mantissa, power] = number.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent < -4 || exponent >= digits) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${withoutZeros(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  return withoutZeros(number.toFixed(Math.max(0, digits - 1 - exponent)));
}

/** @param {string} text */
function withoutZeros(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/**
 * Write a statistic; counts and elements of integer tensors are written in full.
 * @param {number | null} number
 * @returns {string}
 */
export function formatStatistic(number) {
  return number !== null && Number.isInteger(number) && Math.abs(number) < 1e6 ? formatInteger(number) : formatNumber(number);
}

/** @param {number} number */
function formatInteger(number) {
  return Object.is(number, -0) ? "-0" : String(number);
}

/**
 * Put the decimal points of a column under each other.
 * @param {string[]} texts
 * @returns {string[]} padded with spaces on both sides
 */
export function aligned(texts) {
  const heads = texts.map((text) => text.match(/^-?(\d+|[a-z]+)/)?.[0].length ?? text.length);
  const before = Math.max(0, ...heads);
  const after = Math.max(0, ...texts.map((text, i) => text.length - heads[i]));
  return texts.map((text, i) => " ".repeat(before - heads[i]) + text + " ".repeat(after - (text.length - heads[i])));
}

/**
 * @param {number} nbytes
 * @returns {string} "1.50 MiB"
 */
export function formatBytes(nbytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (nbytes < 1024) return unit === "B" ? `${Math.round(nbytes)} B` : `${nbytes.toFixed(2)} ${unit}`;
    nbytes /= 1024;
  }
  return `${nbytes.toFixed(2)} TiB`;
}

/**
 * @param {number} durationNs
 * @returns {string} "1.50 ms"
 */
export function formatNs(durationNs) {
  for (const [unit, size] of /** @type {[string, number][]} */ ([["s", 1e9], ["ms", 1e6], ["us", 1e3]])) {
    if (durationNs >= size) return `${(durationNs / size).toFixed(2)} ${unit}`;
  }
  return `${Math.round(durationNs)} ns`;
}

/**
 * @param {number} count
 * @param {string} what
 * @returns {string} "1,384 calls"
 */
export function formatCount(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}
