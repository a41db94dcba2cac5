/** One step and rank: its calls at once, their arguments and values when they are looked at. */

import { Calls } from "./calls.js";
import { ArgumentChunk, MARK, ValueChunk } from "./chunks.js";
import { Histograms } from "./histograms.js";
import { Judged } from "./judged.js";
import { Tree } from "./tree.js";

/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./chunks.js").Template} Template */
/** @typedef {import("./chunks.js").Signature} Signature */
/** @typedef {"target" | "baseline"} Side */

/** A value of a step and rank, by its position among all. */
export class Value {
  /**
   * @param {number} index
   * @param {ValueChunk} chunk
   * @param {number} at place in the chunk
   */
  constructor(index, chunk, at) {
    this.index = index;
    this.chunk = chunk;
    this.at = at;
    /** @type {Signature} */
    this.signature = chunk.signatures[chunk.signature[at]];
  }

  get id() {
    return this.chunk.ids[this.at];
  }

  get hasStatistics() {
    return this.chunk.hasStatistics(this.at);
  }

  get hasData() {
    return this.chunk.hasData(this.at);
  }

  get nonfinite() {
    return this.chunk.nonfinite(this.at);
  }

  /** @param {string} name */
  statistic(name) {
    return this.chunk.statistic(this.at, name);
  }

  /**
   * @param {string} name
   * @returns {number[] | undefined} real and imaginary part of a statistic of complex numbers
   */
  complexStatistic(name) {
    return this.chunk.complex[name]?.[this.chunk.row[this.at]];
  }
}

/** What a call was given and returned. */
export class Arguments {
  /**
   * @param {Template} template
   * @param {Value[]} values in the order of the template's slots
   * @param {number} sequenceNr -1 for none
   * @param {string | undefined} error
   */
  constructor(template, values, sequenceNr, error) {
    this.template = template;
    this.values = values;
    this.sequenceNr = sequenceNr;
    this.error = error;
  }

  /** @param {"input" | "output" | "mutated"} group */
  of(group) {
    /** @type {[string, Value][]} */
    const pairs = this.template.slots.map((slot, i) => [slot, this.values[i]]);
    return pairs.filter(([slot]) => slot.startsWith(group));
  }

  /** The results as text: "f32[8, 4]". */
  get result() {
    const values = this.of("output").map(([, value]) => value);
    let next = 0;
    return this.template.outputs.replaceAll(MARK, () => values[next++]?.signature.text ?? "?");
  }
}

export class Rank {
  /**
   * @param {Source} source
   * @param {Side} side
   * @param {Record<string, any>} outline of the step and rank
   * @param {number} chunk calls or values in a chunk
   */
  constructor(source, side, outline, chunk) {
    this.source = source;
    this.side = side;
    this.outline = outline;
    /** @type {number} */
    this.step = outline.step;
    /** @type {number} */
    this.rank = outline.rank;
    this.key = `${side}/${outline.step}/${outline.rank}`;
    this.chunk = chunk;
    /** @type {Map<string, any>} decoded chunks by name */
    this.chunks = new Map();
    /** @type {Map<string, Promise<import("./columns.js").Section>>} chunks that have been asked for */
    this.loadingChunks = new Map();
    /** @type {{start: Int32Array, calls: Int32Array} | null} calls by the forward call that they belong to */
    this.belonging = null;
    /** @type {Promise<Histograms | null> | null} */
    this.histograms = null;
    /** @type {((call: number) => string) | null} type of the results of a call, once all are loaded */
    this.resultOf = null;
  }

  /** Load what every view stands on. */
  async load() {
    this.calls = new Calls(await this.source.section(`${this.key}/tree`));
    this.tree = new Tree(this.calls.parent);
    const judged = await this.source.optional(`${this.key}/judged`);
    this.judged = judged ? new Judged(judged, this.calls.count) : null;
    this.judged?.inheritFloors(this.calls.parent);
    return this;
  }

  /** Calls and tree of a rank that has been loaded. */
  get loaded() {
    if (!this.calls || !this.tree) throw new Error(`${this.key} has not been loaded`);
    return { calls: this.calls, tree: this.tree, judged: this.judged ?? null };
  }

  /**
   * Return the backward and recomputed calls of a forward call, in execution order.
   * @param {number} call
   * @returns {number[]}
   */
  belongingTo(call) {
    const { start, calls } = (this.belonging ??= grouped(this.loaded.calls.forward));
    return Array.from(calls.subarray(start[call], start[call + 1]));
  }

  /**
   * @template T
   * @param {string} kind
   * @param {number} at position of a call or value
   * @param {(section: import("./columns.js").Section) => T} decode
   * @returns {Promise<T>}
   */
  async decoded(kind, at, decode) {
    const name = `${this.key}/${kind}/${Math.floor(at / this.chunk)}`;
    const known = this.chunks.get(name);
    if (known) return known;
    let loading = this.loadingChunks.get(name);
    if (!loading) this.loadingChunks.set(name, (loading = this.source.section(name)));
    try {
      const section = await loading;
      const found = this.chunks.get(name) ?? decode(section);
      this.chunks.set(name, found);
      return found;
    } finally {
      this.loadingChunks.delete(name);
    }
  }

  /**
   * Return what a call was given and returned if that is loaded already.
   * @param {number} call
   * @returns {Arguments | null}
   */
  argumentsNow(call) {
    /** @type {ArgumentChunk | undefined} */
    const chunk = this.chunks.get(`${this.key}/calls/${Math.floor(call / this.chunk)}`);
    if (!chunk) return null;
    const at = call % this.chunk;
    const { template, refs } = chunk.of(at);
    const values = [];
    for (const index of refs) {
      const facts = this.chunks.get(`${this.key}/values/${Math.floor(index / this.chunk)}`);
      if (!facts) return null;
      values.push(new Value(index, facts, index % this.chunk));
    }
    return new Arguments(template, values, chunk.sequenceNr[at], chunk.errors[call]);
  }

  /** Load the arguments of all calls. */
  async loadAll() {
    const { count } = this.loaded.calls;
    const values = this.outline.values;
    for (let call = 0; call < count; call += this.chunk) await this.argumentChunk(call);
    for (let index = 0; index < values; index += this.chunk) await this.value(index);
  }

  /** Load the types of the results of all calls. */
  async loadResults() {
    await this.loadAll();
    const texts = Array.from({ length: this.loaded.calls.count }, (_, call) => this.argumentsNow(call)?.result ?? "");
    this.resultOf = (call) => texts[call];
  }

  /** @param {number} call */
  argumentChunk(call) {
    return this.decoded("calls", call, (section) => new ArgumentChunk(section));
  }

  /** @param {number} index */
  async value(index) {
    const chunk = await this.decoded("values", index, (section) => new ValueChunk(section));
    return new Value(index, chunk, index % this.chunk);
  }

  /**
   * @param {number} call
   * @returns {Promise<Arguments>}
   */
  async arguments(call) {
    const chunk = await this.argumentChunk(call);
    const at = call % this.chunk;
    const { template, refs } = chunk.of(at);
    const values = await Promise.all(Array.from(refs, (index) => this.value(index)));
    return new Arguments(template, values, chunk.sequenceNr[at], chunk.errors[call]);
  }

  /**
   * @param {number} index of a value
   * @returns {Promise<import("../parts/histogram.js").Histogram | null>} null where none was made
   */
  async histogram(index) {
    const read = (/** @type {import("./columns.js").Section | null} */ section) => section ? new Histograms(section) : null;
    if (this.source.isServed) return read(await this.source.optional(`${this.key}/histograms/${index}`))?.of(index) ?? null;
    this.histograms ??= this.source.optional(`${this.key}/histograms`).then(read);
    return (await this.histograms)?.of(index) ?? null;
  }

  /**
   * @param {number} index of a value
   * @returns {Promise<{producer: number, consumers: number[]}>} calls; -1 for a value from outside
   */
  async uses(index) {
    const found = await this.decoded("uses", index, usesOf);
    const at = index % this.chunk;
    return { producer: found.producer[at], consumers: found.consumers[at] };
  }
}

/**
 * Return the places of each number, ascending; those of number n begin at start[n].
 * @param {Int32Array | Float64Array} numbers less than there are of them; -1 is in no group
 */
function grouped(numbers) {
  const start = new Int32Array(numbers.length + 2);
  for (const number of numbers) if (number >= 0) start[number + 2]++;
  for (let at = 2; at < start.length; at++) start[at] += start[at - 1];
  const calls = new Int32Array(start[numbers.length + 1]);
  for (let at = 0; at < numbers.length; at++) if (numbers[at] >= 0) calls[start[numbers[at] + 1]++] = at;
  return { start, calls };
}

/** @param {import("./columns.js").Section} section */
function usesOf(section) {
  const counts = section.integers("count");
  const steps = section.integers("consumer");
  let next = 0;
  const consumers = Array.from(counts, (count) => {
    let call = 0;
    return Array.from({ length: count }, () => (call += steps[next++]));
  });
  return { producer: section.integers("producer"), consumers };
}
