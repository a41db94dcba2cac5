/** The help: keys and the words of the search. */

import { h } from "./dom.js";

const KEYS = [
  ["/", "search"], ["j k ↓ ↑", "next and previous call"], ["← →", "close and open a call in the tree; in the strip, pan"],
  ["+ −", "zoom the strip"], ["Enter", "look at the selected call"], ["b f", "to its backward, to its forward"],
  ["p", "to the call it ran in"], ["o", "to its partner in the other dump"], ["1 … 7", "the views, from left to right"],
  ["Esc", "leave the search, close this"], ["?", "this help"],
];
const WORDS = [
  ["addmm", "in op, name, module or source"], ["op:aten::addmm", "an op or api by its full name, or a part of it"],
  ["kind:aten", "aten, api, module or node"], ["phase:backward", "forward, recompute, backward or optimizer"],
  ["module:transformer.h.*.attn", "glob on the module path; takes in what is inside"], ["name:addmm.3", "a part of the call's name"],
  ["source:train.py:42", "a part of file and line"], ["dtype:bf16", "a part of the results' types"],
  ["status:different", "what a comparison says"], ["op:regex:^aten::_foreach", "regex: before any text"],
];

/** @type {HTMLDialogElement | null} */
let dialog = null;

export function toggleHelp() {
  if (!dialog) {
    dialog = /** @type {HTMLDialogElement} */ (h("dialog", { class: "help", "aria-label": "Help" },
      h("h2", {}, "Keys"), list(KEYS, "kbd"), h("h2", {}, "Search"), h("p", {}, "Words are joined by “and”; quotes hold spaces together."),
      list(WORDS, "code"), h("form", { method: "dialog" }, h("button", {}, "Close"))));
    document.body.append(dialog);
  }
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

/**
 * @param {string[][]} pairs
 * @param {string} tag
 */
function list(pairs, tag) {
  return h("dl", {}, pairs.flatMap(([term, text]) => [h("dt", {}, h(tag, {}, term)), h("dd", {}, text)]));
}
