/** Facts that a server adds after the first view: those of whole indexes, then the origin of NaN. */

/** @typedef {import("../frame/app.js").App} App */

const MOST_CALLS = 300_000; // read without being asked to
export const MOST_SEARCHED = 150_000;

/**
 * Return the step-ranks that can be looked at without being asked to, or all.
 * @param {App} app
 * @param {boolean} all
 * @returns {any[]}
 */
export function worthReading(app, all) {
  let calls = 0;
  const early = app.target.step_ranks.filter((/** @type {any} */ one) => one.shown && one.early);
  return early.filter((/** @type {any} */ one, /** @type {number} */ at) => {
    calls += one.calls;
    return all || at === 0 || calls <= MOST_CALLS;
  });
}

/**
 * Read what there is to say of step-ranks, one after another.
 * @param {App} app
 * @param {any[]} found step-ranks of the outline
 * @param {boolean} all search large ones for NaN too
 * @param {() => void} onMore called when there is more to show
 */
export async function readFacts(app, found, all, onMore) {
  for (const one of found) {
    const key = `target/${one.step}/${one.rank}`;
    Object.assign(one, (await app.source.section(`${key}/facts`)).json);
    onMore();
    if (all || one.calls <= MOST_SEARCHED) {
      one.nonfinite = (await app.source.section(`${key}/nonfinite`)).json;
      onMore();
    }
  }
}
