/** What is open: the outline of the report, its step-ranks, and which of them is looked at. */

import { Rank } from "../data/rank.js";
import { address, currentPlace } from "./address.js";

/** @typedef {import("../data/source.js").Source} Source */
/** @typedef {import("./address.js").Place} Place */
/** @typedef {import("../data/rank.js").Side} Side */

/**
 * @typedef {object} View
 * @property {HTMLElement} element
 * @property {(place: Place) => Promise<void> | void} show
 * @property {(event: KeyboardEvent) => void} [pressed] act on a key that it knows, and keep it from others
 * @property {() => void} [renew] forget what was shown: there are new steps, or the server answers again
 * @property {() => void} [forget] forget what was to be shown: the server could not give it, but may when asked again
 */

export class App {
  /**
   * @param {Source} source
   * @param {Record<string, any>} outline
   */
  constructor(source, outline) {
    this.source = source;
    this.outline = outline;
    this.comparison = outline.comparison;
    /** @type {Map<string, Promise<Rank>>} */
    this.loading = new Map();
    /** @type {Map<string, Rank>} */
    this.ranks = new Map();
    this.addRanks();
  }

  addRanks() {
    for (const [side, { step_ranks }] of Object.entries(this.outline.sides)) {
      for (const found of step_ranks.filter((/** @type {any} */ one) => one.shown)) {
        const rank = new Rank(this.source, /** @type {Side} */ (side), found, this.outline.chunk);
        const known = this.ranks.get(rank.key);
        if (known && known.outline.calls === found.calls) continue;
        this.ranks.set(rank.key, rank);
        this.loading.delete(rank.key);
      }
    }
  }

  /**
   * Take in the outline of a dump that has grown; what has been read of its steps stays.
   * @param {Record<string, any>} outline
   */
  grow(outline) {
    for (const [side, { step_ranks }] of Object.entries(outline.sides)) {
      const before = this.outline.sides[side]?.step_ranks ?? [];
      step_ranks.forEach((/** @type {any} */ one, /** @type {number} */ at) => {
        const known = before.find((/** @type {any} */ other) => other.step === one.step && other.rank === one.rank);
        if (known && known.calls === one.calls && known.complete === one.complete) step_ranks[at] = known;
      });
    }
    this.outline = outline;
    this.addRanks();
  }

  get target() {
    return this.outline.sides.target;
  }

  /** @param {Side} side */
  path(side) {
    return this.outline.sides[side].path;
  }

  /** Where to look first: where the first cause is. */
  get firstKey() {
    const cause = this.comparison?.cause;
    if (cause) return `${cause.side}/${cause.step}/${cause.rank}`;
    const sick = this.target.step_ranks.find((/** @type {any} */ one) => one.shown && one.nonfinite?.first);
    return sick ? `target/${sick.step}/${sick.rank}` : "";
  }

  /**
   * Return the step and rank that a place names, loaded; null where the report holds none.
   * @param {Place} [place]
   * @returns {Promise<Rank | null>}
   */
  async rankAt(place = currentPlace()) {
    const rank = this.rankNamed(place);
    return rank ? this.loaded(rank) : null;
  }

  /** @param {Place} place */
  rankNamed({ side, step, rank }) {
    const given = [...this.ranks.values()].filter((one) => {
      return one.side === (side || "target") && (!step || one.step === Number(step)) && (!rank || one.rank === Number(rank));
    });
    if (!step && !rank && !side) return this.ranks.get(this.firstKey) ?? given[0] ?? null;
    return given[0] ?? null;
  }

  /**
   * Return the step and rank of the other dump that a step and rank was compared with, if the report shows it.
   * @param {Rank} rank
   * @returns {Rank | null}
   */
  partnerOf(rank) {
    const other = rank.side === "target" ? "baseline" : "target";
    /** @type {Record<string, [number, number]> | undefined} */
    const pair = this.comparison?.ranks.find((/** @type {any} */ one) => {
      return one[rank.side][0] === rank.step && one[rank.side][1] === rank.rank;
    });
    return pair ? this.ranks.get(`${other}/${pair[other][0]}/${pair[other][1]}`) ?? null : null;
  }

  /**
   * @param {Rank} rank
   * @returns {Promise<Rank>}
   */
  loaded(rank) {
    let loading = this.loading.get(rank.key);
    if (!loading) {
      this.loading.set(rank.key, (loading = rank.load()));
      loading.catch(() => this.loading.delete(rank.key)); // to be asked for again
    }
    return loading;
  }

  /**
   * Return the address of a call.
   * @param {Rank} rank
   * @param {string} name
   * @param {Partial<Place>} [more]
   */
  callAddress(rank, name, more = {}) {
    return address({ view: "call", ...this.placeOf(rank), call: name, ...more });
  }

  /**
   * Return what of a place names a step and rank.
   * @param {Rank} rank
   * @returns {Partial<Place>}
   */
  placeOf(rank) {
    const side = rank.side === "target" ? "" : rank.side;
    return { side, step: String(rank.step), rank: String(rank.rank) };
  }
}
