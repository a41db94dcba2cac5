/** Follows a dump that is still being written: asks the server now and then whether there is something new. */

/** @typedef {import("./app.js").App} App */
/** @typedef {import("../data/source.js").ServerSource} ServerSource */

const EVERY_MS = 2000;
const HIDDEN_MS = 15_000;

/**
 * @param {App} app
 * @param {ServerSource} source
 * @param {() => void} renew called when there are new steps
 */
export function follow(app, source, renew) {
  const look = async () => {
    const generation = await source.generation();
    document.documentElement.classList.toggle("alone", generation < 0);
    if (generation > app.outline.generation) {
      app.grow((await source.section("outline")).json);
      renew();
    }
    setTimeout(look, document.hidden ? HIDDEN_MS : EVERY_MS);
  };
  setTimeout(look, EVERY_MS);
}
