/** A line of source code as text. */

import { h } from "../frame/dom.js";

/**
 * Where a package is installed matters less than the file in it: the whole path is in the title.
 * @param {string} text "file:line in function", or two of them
 */
export function sourceLine(text) {
  return h("span", { class: "mono", title: text }, text.replace(/\S*[/\\](?:site|dist)-packages[/\\]/g, "…/"));
}
