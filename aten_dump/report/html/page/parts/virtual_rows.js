/** A list of any length: only the rows that are seen are elements, and they are used again. */

import { h } from "../frame/dom.js";

const MOST_PIXELS = 8_000_000; // browsers cut taller elements; of longer lists a pixel stands for more
const BEYOND = 6; // rows drawn above and below what is seen

/**
 * @typedef {object} RowKind
 * @property {number} height of a row
 * @property {() => HTMLElement} make an empty row
 * @property {(row: HTMLElement, index: number) => void} fill
 */

export class VirtualRows {
  /**
   * @param {HTMLElement} scroller what scrolls; rows are put into it
   * @param {RowKind} kind
   */
  constructor(scroller, kind) {
    this.scroller = scroller;
    this.kind = kind;
    this.count = 0;
    /** @type {HTMLElement[]} */
    this.pool = [];
    this.body = h("div", { class: "rows", role: "presentation" });
    scroller.append(this.body);
    this.waiting = false;
    scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    new ResizeObserver(() => this.soon()).observe(scroller);
  }

  /** @param {number} count */
  setCount(count) {
    this.count = count;
    this.pixels = Math.min(count * this.kind.height, MOST_PIXELS);
    this.body.style.height = `${this.pixels}px`;
    this.draw();
  }

  /** Draw again before the next frame. */
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  get head() {
    return this.body.offsetTop;
  }

  get seen() {
    return Math.max(0, this.scroller.clientHeight - this.head);
  }

  /** First row that is seen, with its fraction. */
  get first() {
    const room = (this.pixels ?? 0) - this.seen;
    const rows = this.count - this.seen / this.kind.height;
    return room <= 0 || rows <= 0 ? 0 : (Math.min(this.scroller.scrollTop, room) / room) * rows;
  }

  draw() {
    const { height, make, fill } = this.kind;
    const first = this.first;
    const from = Math.max(0, Math.floor(first) - BEYOND);
    const to = Math.min(this.count, Math.ceil(first + this.seen / height) + BEYOND);
    while (this.pool.length < to - from) {
      const row = make();
      row.style.height = `${height}px`;
      this.pool.push(row);
      this.body.append(row);
    }
    const top = this.scroller.scrollTop - first * height;
    for (let i = 0; i < this.pool.length; i++) {
      const row = this.pool[i];
      const index = from + i;
      row.hidden = index >= to;
      if (row.hidden) continue;
      row.style.transform = `translateY(${Math.round(top + index * height)}px)`;
      fill(row, index);
    }
  }

  /**
   * Scroll so that a row is seen.
   * @param {number} index
   * @param {{centre?: boolean}} [options]
   */
  reveal(index, { centre = false } = {}) {
    const { height } = this.kind;
    const rows = this.seen / height;
    const first = this.first;
    if (index >= first && index + 1 <= first + rows) return;
    const wanted = centre ? index - rows / 2 : index < first ? index : index + 1 - rows;
    const most = this.count - rows;
    const room = (this.pixels ?? 0) - this.seen;
    this.scroller.scrollTop = most <= 0 ? 0 : (Math.max(0, Math.min(wanted, most)) / most) * room;
    this.draw();
  }
}
