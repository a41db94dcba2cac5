/** A line of source code as text. */

import { h } from "../frame/dom.js";

/**
 * Where a package is installed matters less than the file in it: the whole path is in the title.
 * @param {string} text "file:line in function", or two of them
 */
export function sourceLine(text) {
  return h("span", { class: "mono", title: text }, text.replace(/\S*[/\\](?:site|dist)-packages[/\\]/g, "…/"));
}

/**
 * Return file and line alone: "train.py:13"; "" where there is none.
 * @param {string} text as of `sourceLine`
 */
export function shortSource(text) {
  return text.match(/[^/\\\s]+:\d+/)?.[0] ?? "";
}

/** @param {string} text "" stays "" */
export function inBrackets(text) {
  return text ? ` (${text})` : "";
}
