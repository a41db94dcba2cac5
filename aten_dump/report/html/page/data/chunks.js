/** Chunks of calls' arguments and of values' facts, decoded. */

/** @typedef {import("./columns.js").Section} Section */
/** @typedef {{text: string, nbytes: number, dtype: string, shape: number[], stride: number[], device: string}} Signature */
/** @typedef {{inputs: [string, string][], outputs: string, written: string[], slots: string[]}} Template */

export const MARK = "\ufffc";
const REQUIRES_GRAD = 1;
const HAS_DATA = 2;
const UNDEFINED = 4;

/** Arguments and results of a chunk of calls. */
export class ArgumentChunk {
  /** @param {Section} section */
  constructor(section) {
    /** @type {Template[]} */
    this.templates = section.json.templates.map((/** @type {any[]} */ [inputs, outputs, written, slots]) => ({ inputs, outputs, written, slots }));
    this.template = section.integers("template");
    this.refs = section.integers("refs");
    this.sequenceNr = section.integers("sequence_nr");
    /** @type {Record<string, string>} */
    this.errors = section.json.errors;
    this.start = new Int32Array(this.template.length + 1);
    for (let i = 0; i < this.template.length; i++) {
      this.start[i + 1] = this.start[i] + this.templates[this.template[i]].slots.length;
    }
  }

  /**
   * @param {number} i place in the chunk
   * @returns {{template: Template, refs: Int32Array | Float64Array}} refs are values, in order of the slots
   */
  of(i) {
    return { template: this.templates[this.template[i]], refs: this.refs.subarray(this.start[i], this.start[i + 1]) };
  }
}

/** Facts of a chunk of values. */
export class ValueChunk {
  /** @param {Section} section */
  constructor(section) {
    this.ids = section.integers("id");
    this.signature = section.integers("signature");
    /** @type {Signature[]} */
    this.signatures = section.json.signatures.map((/** @type {any[]} */ [text, nbytes, dtype, shape, stride, device]) => {
      return { text, nbytes, dtype, shape, stride, device };
    });
    this.storage = section.integers("storage");
    this.version = section.integers("version");
    this.offset = section.integers("offset");
    this.flags = section.integers("flags");
    this.row = section.integers("row");
    /** @type {string[]} */
    this.names = section.json.statistics;
    this.columns = new Map(this.names.map((name) => [name, section.decimals(`statistics.${name}`)]));
    /** @type {Record<string, Record<string, number[]>>} */
    this.complex = section.json.complex;
    /** @type {(string | null)[] | undefined} */
    this.hashes = section.json.hashes;
  }

  /** @param {number} i place in the chunk */
  requiresGrad(i) {
    return (this.flags[i] & REQUIRES_GRAD) !== 0;
  }

  /** @param {number} i */
  hasData(i) {
    return (this.flags[i] & HAS_DATA) !== 0;
  }

  /** @param {number} i */
  undefinedMemory(i) {
    return (this.flags[i] & UNDEFINED) !== 0;
  }

  /** @param {number} i */
  hasStatistics(i) {
    return this.row[i] > 0;
  }

  /**
   * @param {number} i
   * @param {string} name
   * @returns {number | null} null where it was not recorded, is not defined, or is complex
   */
  statistic(i, name) {
    const column = this.columns.get(name);
    const row = this.row[i] - 1;
    if (!column || row < 0) return null;
    return name === "positive" ? this.positive(row, column.number(row)) : column.number(row);
  }

  /**
   * @param {number} row
   * @param {number | null} rest beyond the other counts; see payload/value_columns.py
   */
  positive(row, rest) {
    const others = ["count", "nan", "zero", "negative"].map((name) => this.columns.get(name)?.number(row));
    if (rest === null || others.some((number) => number === undefined || number === null)) return rest;
    const [count, ...less] = /** @type {number[]} */ (others);
    return rest + count - less.reduce((sum, number) => sum + number, 0);
  }

  /**
   * @param {number} i
   * @returns {number} elements that are NaN or infinite, 0 where that is not known
   */
  nonfinite(i) {
    const row = this.row[i] - 1;
    if (row < 0) return 0;
    let sum = 0;
    for (const name of ["nan", "posinf", "neginf"]) sum += this.columns.get(name)?.number(row) ?? 0;
    return sum;
  }
}
