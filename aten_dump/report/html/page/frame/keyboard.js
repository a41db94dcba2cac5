/** Keys that work everywhere: moving to a related call, between views, to the search. */

import { PHASES } from "../data/calls.js";
import { currentPlace, go, VIEWS } from "./address.js";
import { toggleHelp } from "./help.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("../data/rank.js").Rank} Rank */

/**
 * @param {App} app
 * @param {HTMLInputElement} search
 */
export function listenToKeys(app, search) {
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === search && event.key === "Escape") search.blur();
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const view = VIEWS[Number(event.key) - 1];
    if (event.key === "/") search.focus();
    else if (event.key === "?") toggleHelp();
    else if (view) go({ view });
    else if ("bfpo".includes(event.key)) follow(app, event.key);
    else return;
    event.preventDefault();
  });
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return target instanceof HTMLElement && target.matches("input, select, textarea");
}

/**
 * Go to the backward, the forward, the parent or the partner of the selected call.
 * @param {App} app
 * @param {string} key
 */
async function follow(app, key) {
  const place = currentPlace();
  const rank = await app.rankAt(place);
  const call = rank?.loaded.calls.find(place.call) ?? -1;
  if (!rank || call < 0) return;
  const { calls, judged } = rank.loaded;
  if (key === "o") {
    const other = app.partnerOf(rank);
    const partner = judged && other ? judged.partner[call] : -1;
    if (other && partner >= 0) go({ ...app.placeOf(other), call: (await app.loaded(other)).loaded.calls.name(partner) });
    return;
  }
  const target = key === "b" ? backwardOf(rank, call) : key === "f" ? calls.forward[call] : calls.parent[call];
  if (target >= 0) go({ ...app.placeOf(rank), call: calls.name(target) });
}

/**
 * Return the call of the backward that is most like a forward call: of its kind, else the first one; -1 for none.
 * @param {Rank} rank
 * @param {number} call
 */
export function backwardOf(rank, call) {
  const { calls } = rank.loaded;
  const found = rank.belongingTo(call).filter((other) => PHASES[calls.phase[other]] === "backward");
  return found.find((other) => calls.kind(other) === calls.kind(call)) ?? found[0] ?? -1;
}
