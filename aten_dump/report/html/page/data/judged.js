/** What a comparison says of the calls of one step and rank. */

/** @typedef {import("./columns.js").Section} Section */

const NUMBERS = ["error", "floor", "ratio", "max_abs", "cosine", "own_error", "amplification"];
const TEXTS = ["slot", "level", "floor_from", "matched_by", "note"];

/** One slot of a pair of calls. */
/** @typedef {{slot: string, status: string, level: string, floor_from: string, matched_by: string, note: string, numbers: Record<string, number | null>, more: Record<string, any>}} JudgedRow */

export class Judged {
  /**
   * @param {Section} section
   * @param {number} count calls
   */
  constructor(section, count) {
    /** @type {string[]} */
    this.statuses = section.json.statuses;
    this.status = section.integers("status");
    this.partner = section.integers("partner");
    this.rowCall = section.integers("row.call");
    this.rowStatus = section.integers("row.status");
    this.numbers = new Map(NUMBERS.map((name) => [name, section.decimals(`row.${name}`)]));
    this.texts = new Map(TEXTS.map((name) => [name, { numbers: section.integers(`row.${name}`), items: section.json[`row.${name}`] }]));
    /** @type {Record<string, any>} */
    this.more = section.json.more;
    /** First row of each call, -1 for none. */
    this.firstRow = new Int32Array(count).fill(-1);
    for (let row = this.rowCall.length - 1; row >= 0; row--) if (this.rowCall[row] >= 0) this.firstRow[this.rowCall[row]] = row;
    /** Of the results of each call the greatest own error over its floor, and the greatest error, with its floor; NaN where nothing was measured. */
    this.ratio = new Float64Array(count).fill(NaN);
    this.error = new Float64Array(count).fill(NaN);
    this.floor = new Float64Array(count).fill(NaN);
    this.findWorst();
  }

  findWorst() {
    const [error, floor, ratio] = ["error", "floor", "ratio"].map((name) => this.number(name));
    for (let row = 0; row < this.rowCall.length; row++) {
      const call = this.rowCall[row];
      if (call < 0 || this.text("slot", row).startsWith("input")) continue;
      const size = ratio.number(row);
      if (size !== null && !(size <= this.ratio[call])) this.ratio[call] = size;
      const distance = error.number(row);
      if (distance === null || distance <= this.error[call]) continue;
      this.error[call] = distance;
      this.floor[call] = floor.number(row) ?? NaN;
    }
  }

  /**
   * Give calls that ran others the floor of what ran in them: floors are known of ops.
   * @param {Int32Array} parent by call
   */
  inheritFloors(parent) {
    for (let call = parent.length - 1; call >= 0; call--) {
      const outer = parent[call];
      if (outer >= 0 && Number.isNaN(this.floor[outer])) this.floor[outer] = this.floor[call];
    }
  }

  /** @param {string} name */
  number(name) {
    const found = this.numbers.get(name);
    if (!found) throw new Error(`no numbers ${name}`);
    return found;
  }

  /**
   * @param {string} name
   * @param {number} row
   * @returns {string}
   */
  text(name, row) {
    const found = this.texts.get(name);
    return found ? found.items[found.numbers[row]] : "";
  }

  /**
   * Return how many times the noise floor the results of a call are off from those of the other dump.
   * @param {number} call
   * @returns {number} NaN where that was not measured
   */
  overFloor(call) {
    const [error, floor] = [this.error[call], this.floor[call]];
    return error === 0 ? 0 : error / floor;
  }

  /** @param {number} call */
  statusOf(call) {
    return this.statuses[this.status[call]];
  }

  /**
   * @param {number} call
   * @returns {JudgedRow[]}
   */
  rows(call) {
    const found = [];
    for (let row = this.firstRow[call]; row >= 0 && this.rowCall[row] === call; row++) {
      found.push({
        status: this.statuses[this.rowStatus[row]],
        slot: this.text("slot", row),
        level: this.text("level", row),
        floor_from: this.text("floor_from", row),
        matched_by: this.text("matched_by", row),
        note: this.text("note", row),
        numbers: Object.fromEntries(NUMBERS.map((name) => [name, this.number(name).number(row)])),
        more: this.more[row] ?? {},
      });
    }
    return found;
  }
}
