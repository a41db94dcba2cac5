/** The address: what is shown, so that a link points at it. `#call=Aten.addmm.3.forward`, `#view=calls&q=op:addmm`. */

export const VIEWS = ["answer", "strip", "calls", "call", "graph", "steps", "memory"];
/** A view that needs a server. */
export const TENSOR = "tensor";

/**
 * @typedef {object} Place
 * @property {string} view
 * @property {string} call name of the selected call, "" for none
 * @property {string} q the search
 * @property {string} side "target" or "baseline"
 * @property {string} step
 * @property {string} rank
 * @property {string} module path of the module whose graph is shown
 * @property {string} value slot that is looked at, with statistic
 * @property {string} dims dimensions of a tensor that are rows and columns
 * @property {string} at index in each dimension
 * @property {string} show of a tensor: itself, its partner, their difference
 * @property {string} share of the elements that get different colours
 */

const NAMES = /** @type {(keyof Place)[]} */ (["view", "side", "step", "rank", "call", "q", "module", "value", "dims", "at", "show", "share"]);

/** @returns {Place} */
export function currentPlace() {
  const given = new URLSearchParams(location.hash.slice(1));
  const place = /** @type {Place} */ (Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""])));
  if (!VIEWS.includes(place.view) && place.view !== TENSOR) place.view = place.call ? "call" : "answer";
  return place;
}

/**
 * @param {Partial<Place>} place
 * @returns {string} "#view=…", without what is not set
 */
export function address(place) {
  const parts = NAMES.filter((name) => place[name]).map((name) => `${name}=${encodeURIComponent(place[name] ?? "")}`);
  return `#${parts.join("&").replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%2F", "/")}`;
}

/**
 * Go to a place that differs from the current one.
 * @param {Partial<Place>} change
 * @param {{replace?: boolean}} [options] replace the entry of the history
 */
export function go(change, { replace = false } = {}) {
  const target = address({ ...currentPlace(), ...change });
  if (target === location.hash) return;
  if (replace) {
    history.replaceState(null, "", target);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = target;
  }
}
