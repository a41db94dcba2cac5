/** Follows a dump that is still being written: asks the server now and then whether there is something new. */

/** @typedef {import("./app.js").App} App */
/** @typedef {import("../data/source.js").ServerSource} ServerSource */

const EVERY_MS = 2000;
const HIDDEN_MS = 15_000;

/**
 * @param {App} app
 * @param {ServerSource} source
 * @param {() => void} renew called when there are new steps, or the server answers again
 */
export function follow(app, source, renew) {
  const look = async () => {
    try {
      const generation = await source.generation();
      const wasAlone = document.documentElement.classList.contains("alone");
      const isAlone = document.documentElement.classList.toggle("alone", generation < 0);
      const hasGrown = generation > app.outline.generation;
      if (hasGrown) app.grow((await source.section("outline")).json);
      if (hasGrown || (wasAlone && !isAlone)) renew();
    } finally {
      setTimeout(look, document.hidden ? HIDDEN_MS : EVERY_MS);
    }
  };
  setTimeout(look, EVERY_MS);
}
