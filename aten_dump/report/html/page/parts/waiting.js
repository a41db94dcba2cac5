/** What stands in a view while the server makes what is shown, and when it cannot. */

import { ServerError } from "../data/source.js";
import { h } from "../frame/dom.js";

const PATIENCE_MS = 250;

/**
 * Show a view; say so where that takes a while, and why where the server cannot.
 * @param {HTMLElement} main
 * @param {() => Promise<void> | void} show
 * @param {() => boolean} isWanted whether it is still what the address names
 */
export async function shownWithPatience(main, show, isWanted) {
  for (const found of main.querySelectorAll(":scope > .failed")) found.remove();
  const note = h("p", { class: "waiting", role: "status" }, "Reading the dump …");
  const timer = setTimeout(() => isWanted() && main.prepend(note), PATIENCE_MS);
  try {
    await show();
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (isWanted()) main.prepend(h("p", { class: "failed", role: "alert" }, error.message));
  } finally {
    clearTimeout(timer);
    note.remove();
  }
}
