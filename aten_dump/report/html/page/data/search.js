/**
 * The search: words that all must hold, with the fields of the command line's filters.
 *
 * `op:` an op or api in full, or a part; `kind:` and `phase:` one of theirs; `module:` glob that takes in what is inside;
 * `name:` a part of the call's name; `source:` a part of "file:line"; `dtype:` a part of a result's type; `status:` of a
 * comparison. `regex:` may stand before any text. A word without a field is looked for in op, name, module and source.
 * What a text means is as in `aten_dump/patterns.py`.
 */

import { KINDS, PHASES } from "./calls.js";

/** @typedef {import("./rank.js").Rank} Rank */
/** @typedef {(call: number) => boolean} Test */
/** @typedef {(text: string) => boolean} TextTest */

export const FIELDS = ["op", "kind", "phase", "module", "name", "source", "dtype", "status"];
export class SearchError extends Error {}

/**
 * Say that a search found nothing, and what may be asked instead.
 * @param {string} query
 */
export function noMatch(query) {
  return `No call matches “${query.trim()}”. All words must hold; ? shows what can be asked.`;
}

/**
 * Split a query into words; a field is before the first colon, quotes hold spaces together.
 * @param {string} query
 * @returns {{field: string, text: string}[]}
 */
export function parsed(query) {
  const words = query.match(/(?:[^\s"]|"[^"]*"?)+/g) ?? [];
  return words.map((word) => {
    const plain = word.replaceAll('"', "");
    const at = plain.indexOf(":");
    const field = plain.slice(0, Math.max(at, 0));
    return FIELDS.includes(field) ? { field, text: plain.slice(at + 1) } : { field: "", text: plain };
  }).filter(({ text }) => text !== "");
}

/**
 * Return which calls a query selects.
 * @param {Rank} rank loaded
 * @param {string} query
 * @param {((call: number) => string) | null} resultOf type of the results; null while they are being loaded
 * @returns {Uint8Array | null} by call; null for all
 * @throws {SearchError} the query says something that cannot be looked for
 */
export function search(rank, query, resultOf) {
  const words = parsed(query);
  if (!words.length) return null;
  const { calls } = rank.loaded;
  const tests = words.map((word) => testOf(rank, word, resultOf));
  const matched = new Uint8Array(calls.count).fill(1);
  // A loop for each word: one through all of them for each call takes twice as long.
  for (const test of tests) for (let call = 0; call < calls.count; call++) if (matched[call] && !test(call)) matched[call] = 0;
  return matched;
}

/**
 * @param {Rank} rank
 * @param {{field: string, text: string}} word
 * @param {((call: number) => string) | null} resultOf
 * @returns {Test}
 */
function testOf(rank, { field, text }, resultOf) {
  const { calls, judged } = rank.loaded;
  switch (field) {
    case "op": return opTest(calls, text);
    case "kind": return byTable(calls.op, calls.ops.map(({ kind }) => kind === oneOf(field, text, KINDS)));
    case "phase": return byTable(calls.phase, PHASES.map((phase) => phase === oneOf(field, text, PHASES)));
    case "module": return moduleTest(calls, text);
    case "name": return nameTest(calls, text);
    case "source": return byTable(calls.stack, calls.sources.map(textTest(field, text)));
    case "status": {
      if (!judged) throw new SearchError("there is no status: nothing was compared");
      return byTable(judged.status, judged.statuses.map((status) => status === oneOf(field, text, judged.statuses)));
    }
    case "dtype": {
      if (!resultOf) return () => false;
      const test = textTest(field, text);
      return (call) => test(resultOf(call));
    }
    default: return anywhereTest(calls, text);
  }
}

/**
 * @param {Int32Array | Float64Array} column
 * @param {boolean[]} facts by what is in the column
 * @returns {Test}
 */
function byTable(column, facts) {
  return (call) => facts[column[call]] === true;
}

/**
 * @param {string} field
 * @param {string} text
 * @param {string[]} allowed
 */
function oneOf(field, text, allowed) {
  const found = allowed.find((name) => name === text) ?? allowed.find((name) => name !== "" && name.startsWith(text));
  if (!found) throw new SearchError(`${field} is "${text}"; allowed: ${allowed.filter(Boolean).join(", ")}`);
  return found;
}

/**
 * @param {string} field
 * @param {string} text
 * @returns {TextTest}
 */
function textTest(field, text) {
  if (!text.startsWith("regex:")) {
    const part = text.toLowerCase();
    return (found) => found.toLowerCase().includes(part);
  }
  try {
    const pattern = pythonPattern(text.slice("regex:".length));
    return (found) => pattern.test(found);
  } catch (error) {
    throw new SearchError(`${field || "the search"} is no regular expression: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * Return a regular expression that is written as Python has it, where the two differ.
 * @param {string} source
 */
function pythonPattern(source) {
  const [, flags = "", rest = ""] = source.match(/^(?:\(\?([imsu]+)\))?(.*)$/s) ?? [];
  const translated = rest.replaceAll("(?P<", "(?<").replace(/\(\?P=(\w+)\)/g, "\\k<$1>").replace(/\\A/g, "^").replace(/\\Z/g, "$");
  return new RegExp(translated, flags.replace("u", ""));
}

// With which names of calls begin: see `PREFIXES` in aten_dump/patterns.py.
const PREFIXES = [
  "Aten", "Custom", "Distributed", "Functional", "Mark", "Module", "NPU", "Node", "Saved", "Scope", "Tensor", "Torch", "VF",
  "Cell", "MindSpore", "Parameters",
];

/** @param {{op: string, head: string}} op */
function opNames({ op, head }) {
  const at = op.lastIndexOf("::");
  const dot = at < 0 ? -1 : op.indexOf(".", at);
  return [op, dot < 0 ? op : op.slice(0, dot), head];
}

/**
 * Return which ops a text names: one in full, or a part of their names.
 * @param {{op: string, head: string}[]} ops
 * @param {string} text
 * @returns {boolean[]}
 */
export function opsNamed(ops, text) {
  const isFull = !text.startsWith("regex:") && (text.includes("::") || PREFIXES.some((prefix) => text.startsWith(`${prefix}.`)));
  const test = isFull ? (/** @type {string} */ name) => name === text : textTest("op", text);
  return ops.map((op) => opNames(op).some(test));
}

/**
 * @param {import("./calls.js").Calls} calls
 * @param {string} text
 */
function opTest(calls, text) {
  return byTable(calls.op, opsNamed(calls.ops, text));
}

/**
 * @param {import("./calls.js").Calls} calls
 * @param {string} glob
 * @returns {Test}
 */
function moduleTest(calls, glob) {
  const pattern = globPattern(glob);
  const modules = calls.modules.map((fqn) => isInside(pattern, fqn));
  const ops = calls.ops.map(({ kind, head }) => kind === "module" && isInside(pattern, head.slice("Module.".length)));
  return (call) => modules[calls.module[call]] || ops[calls.op[call]];
}

/**
 * @param {RegExp} pattern
 * @param {string} fqn
 */
function isInside(pattern, fqn) {
  for (let outer = fqn; outer; outer = outer.slice(0, Math.max(outer.lastIndexOf("."), 0))) if (pattern.test(outer)) return true;
  return fqn === "" && pattern.test("");
}

/** @param {string} glob as Python's fnmatch reads it */
function globPattern(glob) {
  const parts = glob.split(/(\*|\?|\[[^\]]+\])/);
  const source = parts.map((part) => {
    if (part === "*") return ".*";
    if (part === "?") return ".";
    if (part.startsWith("[") && part.endsWith("]")) return part.replace(/^\[!/, "[^").replaceAll("\\", "\\\\");
    return part.replace(/[.+^${}()|[\]\\]/g, "\\$&");
  }).join("");
  try {
    return new RegExp(`^(?:${source})$`, "s");
  } catch {
    throw new SearchError(`module is "${glob}", which is no glob`);
  }
}

/**
 * @param {import("./calls.js").Calls} calls
 * @param {string} text
 * @returns {Test}
 */
function nameTest(calls, text) {
  const test = textTest("name", text);
  if (!text.startsWith("regex:") && !/\d|\.(f|r|b|o)/.test(text)) {
    const heads = calls.ops.map(({ head }) => test(head));
    const phases = PHASES.map(test);
    return (call) => heads[calls.op[call]] || phases[calls.phase[call]];
  }
  return (call) => test(calls.name(call));
}

/**
 * @param {import("./calls.js").Calls} calls
 * @param {string} text
 * @returns {Test}
 */
function anywhereTest(calls, text) {
  const test = textTest("", text);
  const ops = calls.ops.map((op) => opNames(op).some(test));
  const modules = calls.modules.map(test);
  const sources = calls.sources.map(test);
  const mayBeName = text.startsWith("regex:") || /\.\d|\d\./.test(text);
  return (call) => {
    if (ops[calls.op[call]] || modules[calls.module[call]] || sources[calls.stack[call]]) return true;
    return mayBeName && test(calls.name(call));
  };
}
