/** Reads sections: columns of integers as payload/columns.py packs them, and JSON. */

const EXPONENTS = { nan: 127, positiveInfinity: 126, negativeInfinity: 125, nothing: 124, negativeZero: 123 };

export class Section {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
    /** @type {Record<string, any>} */
    this.json = header.json;
    /** @type {Map<string, {bytes: Uint8Array, count: number, width: number, signed: number, delta: number}>} */
    this.columns = new Map();
    let at = 4 + size;
    for (const [name, count, width, signed, delta] of header.columns) {
      this.columns.set(name, { bytes: bytes.subarray(at, at + count * width), count, width, signed, delta });
      at += count * width;
    }
  }

  /**
   * Decode a column.
   * @param {string} name
   * @returns {Int32Array | Float64Array} doubles where 32 bits may not do
   */
  integers(name) {
    const column = this.columns.get(name);
    if (!column) throw new Error(`the report has no column ${name}`);
    if (column.width > 3) return wide(column);
    const { bytes, count, width } = column;
    const found = new Int32Array(count);
    for (let plane = 0; plane < width; plane++) {
      const shift = 8 * plane;
      for (let i = 0, at = plane * count; i < count; i++, at++) found[i] |= bytes[at] << shift;
    }
    if (column.signed) for (let i = 0; i < count; i++) found[i] = (found[i] >>> 1) ^ -(found[i] & 1);
    return column.delta ? summed(found) : found;
  }

  /**
   * Return the two columns of decimal numbers.
   * @param {string} name
   * @returns {Decimals}
   */
  decimals(name) {
    return new Decimals(this.integers(`${name}.digits`), this.integers(`${name}.exponent`));
  }
}

/** @param {{bytes: Uint8Array, count: number, width: number, signed: number, delta: number}} column */
function wide({ bytes, count, width, signed, delta }) {
  const found = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    let value = 0n;
    for (let plane = width - 1; plane >= 0; plane--) value = (value << 8n) | BigInt(bytes[plane * count + i]);
    if (signed) value = (value >> 1n) ^ -(value & 1n);
    found[i] = Number(value);
  }
  return delta ? summed(found) : found;
}

/**
 * @param {Int32Array | Float64Array} steps
 * @returns {Int32Array | Float64Array} running sums; doubles where they leave 32 bits
 */
function summed(steps) {
  let sum = 0;
  for (let i = 0; i < steps.length; i++) {
    sum += steps[i];
    if (sum > 0x7fffffff || sum < -0x80000000) return summed64(steps, i, sum);
    steps[i] = sum;
  }
  return steps;
}

/**
 * @param {Int32Array | Float64Array} steps summed up to `at`, exclusive
 * @param {number} at
 * @param {number} sum
 */
function summed64(steps, at, sum) {
  const found = Float64Array.from(steps);
  found[at] = sum;
  for (let i = at + 1; i < found.length; i++) found[i] = sum += steps[i];
  return found;
}

/** Numbers as decimal digits and exponents, which are shown without rounding again. */
export class Decimals {
  /**
   * @param {Int32Array | Float64Array} digits
   * @param {Int32Array | Float64Array} exponents
   */
  constructor(digits, exponents) {
    this.digits = digits;
    this.exponents = exponents;
  }

  /**
   * @param {number} i
   * @returns {number | null} null where it is not defined
   */
  number(i) {
    const digits = this.digits[i];
    switch (this.exponents[i]) {
      case EXPONENTS.nothing: return null;
      case EXPONENTS.nan: return NaN;
      case EXPONENTS.positiveInfinity: return Infinity;
      case EXPONENTS.negativeInfinity: return -Infinity;
      case EXPONENTS.negativeZero: return -0;
      case 0: return digits;
      default: return Number(`${digits}e${this.exponents[i]}`);
    }
  }
}
