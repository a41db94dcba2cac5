/** Keys that work everywhere: moving to a related call, between views, to the search. */

import { PHASES } from "../data/calls.js";
import { currentPlace, go, VIEWS } from "./address.js";
import { toggleHelp } from "./help.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("../data/rank.js").Rank} Rank */

/** @typedef {import("./app.js").View} View */

const BESIDE_TYPING = /^[jkbfpo/?1-7]$/; // a list of choices goes by arrows and Enter itself
const WITH_A_CALL = ["strip", "calls", "call", "graph"];

/**
 * @param {App} app
 * @param {HTMLInputElement} search
 * @param {() => View} shown the view that is shown: keys that it knows are its own, wherever the focus is
 */
export function listenToKeys(app, search, shown) {
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === search && event.key === "Escape") search.blur();
    if (event.target === search && ["Enter", "ArrowDown"].includes(event.key)) {
      search.blur(); // on to what was found
      shown().pressed?.(new KeyboardEvent("keydown", { key: "j" }));
      return event.preventDefault();
    }
    if (document.querySelector("dialog[open]") || isOwn(event)) return;
    shown().pressed?.(event);
    if (event.defaultPrevented) return;
    const view = VIEWS[Number(event.key) - 1];
    if (event.key === "/") search.focus();
    else if (event.key === "?") toggleHelp();
    else if (view) go({ view });
    else if ("bfpo".includes(event.key)) follow(app, event.key);
    else if (isMove(event)) step(app, ["j", "ArrowDown"].includes(event.key) ? 1 : -1);
    else if (event.key === "Enter") enter(app);
    else return;
    event.preventDefault();
  });
}

/**
 * Whether a key is for the element that has the focus: a text that is typed, a choice, a link that is followed.
 * @param {KeyboardEvent} event
 */
function isOwn({ target, key }) {
  if (!(target instanceof Element)) return false;
  if (target.matches("select, input[type=checkbox]")) return !BESIDE_TYPING.test(key);
  if (target.matches("input, textarea")) return true;
  return target.matches("a, button, summary") && (key === "Enter" || key === " ");
}

/**
 * Up and down scroll a page that is read; where one call is looked at they go to the next.
 * @param {KeyboardEvent} event
 */
function isMove({ key }) {
  return key === "j" || key === "k" || (["ArrowDown", "ArrowUp"].includes(key) && currentPlace().view === "call");
}

/**
 * Return the call that is selected, or the first cause; -1 for none.
 * @param {App} app
 * @param {Rank} rank
 */
function selectedIn(app, rank) {
  const { calls } = rank.loaded;
  const { call } = currentPlace();
  if (call) return calls.find(call);
  const cause = app.comparison?.cause;
  const name = cause && `${cause.side}/${cause.step}/${cause.rank}` === rank.key ? cause.call : rank.outline.nonfinite?.first?.call;
  return name ? calls.find(name) : -1;
}

/**
 * Go to the call after or before the selected one, as they are read.
 * @param {App} app
 * @param {number} by
 */
async function step(app, by) {
  const rank = await app.rankAt();
  if (!rank || !rank.loaded.calls.count) return;
  const { calls, tree } = rank.loaded;
  const selected = selectedIn(app, rank);
  const isFirst = selected < 0 || !currentPlace().call; // what is first in mind is looked at before one goes on
  const at = isFirst ? tree.place[Math.max(selected, 0)] : Math.max(0, Math.min(calls.count - 1, tree.place[selected] + by));
  const { view } = currentPlace();
  go({ ...app.placeOf(rank), call: calls.name(tree.order[at]), view: WITH_A_CALL.includes(view) ? view : "call" }, { replace: view === "call" });
}

/**
 * Open the selected call, or the first cause.
 * @param {App} app
 */
async function enter(app) {
  const rank = await app.rankAt();
  const call = rank ? selectedIn(app, rank) : -1;
  if (rank && call >= 0) go({ ...app.placeOf(rank), view: "call", call: rank.loaded.calls.name(call) });
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
