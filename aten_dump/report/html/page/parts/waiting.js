/** What stands in a view while the server makes what is shown, and when it cannot. */

import { ServerError } from "../data/source.js";
import { h } from "../frame/dom.js";

/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */

const PATIENCE_MS = 250;

/**
 * Show a view; say so where that takes a while, and why where the server cannot.
 * @param {HTMLElement} main
 * @param {View} view
 * @param {Place} place
 * @param {() => boolean} isWanted whether it is still what the address names
 */
export async function shownWithPatience(main, view, place, isWanted) {
  for (const found of main.querySelectorAll(":scope > .failed")) found.remove();
  const note = h("p", { class: "waiting", role: "status" }, "Reading the dump …");
  const timer = setTimeout(() => isWanted() && main.prepend(note), PATIENCE_MS);
  try {
    await view.show(place);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    view.forget?.();
    if (isWanted()) show(main, error);
  } finally {
    clearTimeout(timer);
    note.remove();
  }
}

/**
 * Show what the server could not give to a read beside a view that is shown already: rows, facts, links.
 * @param {HTMLElement} main
 */
export function showReadsBeside(main) {
  window.addEventListener("unhandledrejection", (event) => {
    if (!(event.reason instanceof ServerError)) return;
    event.preventDefault(); // it is no mistake of the page
    show(main, event.reason);
  });
}

/**
 * @param {HTMLElement} main
 * @param {ServerError} error shown once, though many may have waited for the same answer
 */
function show(main, { message }) {
  const isShown = [...main.querySelectorAll(":scope > .failed")].some((found) => found.textContent === message);
  if (!isShown) main.prepend(h("p", { class: "failed", role: "alert" }, message));
}
