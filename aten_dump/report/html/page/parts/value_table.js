/** A table of tensors: type, statistics, histogram, who made them and who reads them. */

import { aligned, formatNumber, formatStatistic } from "../data/numbers.js";
import { address, currentPlace, TENSOR } from "../frame/address.js";
import { h, replace } from "../frame/dom.js";
import { histogram } from "./histogram.js";
import { callLink } from "./links.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../data/rank.js").Rank} Rank */
/** @typedef {import("../data/rank.js").Value} Value */

const STATISTICS = ["min", "max", "mean", "std", "l2norm"];
const COUNTS = ["nan", "posinf", "neginf", "zero", "negative", "positive"];
const MOST_ROWS = 40;
const MOST_READERS = 3;

/**
 * @param {App} app
 * @param {Rank} rank
 * @param {[string, Value][]} found slots and values
 * @param {boolean} isInput who made it is shown; of results, who reads it
 * @param {string} label
 */
export async function valueTable(app, rank, found, isInput, label) {
  const rows = found.slice(0, MOST_ROWS);
  const statistics = STATISTICS.filter((name) => rows.some(([, value]) => value.hasStatistics && value.chunk.names.includes(name)));
  const counts = COUNTS.filter((name) => rows.some(([, value]) => value.hasStatistics && (value.statistic(name) ?? 0) > 0));
  const columns = [...statistics, ...counts].map((name) => aligned(rows.map(([, value]) => statisticText(value, name))));
  const histograms = await Promise.all(rows.map(([, value]) => rank.histogram(value.index)));
  const hasHistograms = histograms.some(Boolean);
  // A server may take seconds to find who uses what: the rest is shown meanwhile.
  const uses = rows.map(([, value]) => rank.uses(value.index));
  if (!app.source.isServed) await Promise.all(uses);
  const titles = ["slot", "tensor", ...statistics, ...counts, ...(hasHistograms ? ["histogram"] : []), isInput ? "made by" : "read by"];
  const body = rows.map(([slot, value], i) => h("tr", {},
    h("th", { scope: "row", class: "mono" }, slot), h("td", { class: "mono" }, typeCell(app, slot, value)),
    columns.map((texts, at) => h("td", { class: `number ${isBad(value, [...statistics, ...counts][at]) ? "bad" : ""}` }, texts[i])),
    hasHistograms ? h("td", {}, histograms[i] ? histogram(histograms[i]) : null) : null,
    filledLater(uses[i], (found) => isInput ? madeBy(app, rank, found.producer) : readBy(app, rank, found.consumers))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: "facts-table" }, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, body)),
    found.length > MOST_ROWS ? h("p", { class: "muted" }, `and ${found.length - MOST_ROWS} more`) : null);
}

/**
 * @param {Promise<{producer: number, consumers: number[]}>} uses
 * @param {(found: {producer: number, consumers: number[]}) => Node | Node[]} content
 */
function filledLater(uses, content) {
  const cell = h("td", {}, h("span", { class: "muted" }, "…"));
  uses.then((found) => replace(cell, content(found)), (error) => replace(cell, error.message));
  return cell;
}

/**
 * @param {Value} value
 * @param {string} name
 */
function statisticText(value, name) {
  const complex = value.complexStatistic(name);
  if (complex) return `${formatNumber(complex[0])}${complex[1] < 0 ? "" : "+"}${formatNumber(complex[1])}j`;
  return value.hasStatistics ? formatStatistic(value.statistic(name)) : "";
}

/**
 * @param {Value} value
 * @param {string} name
 */
function isBad(value, name) {
  const number = value.statistic(name);
  return ["nan", "posinf", "neginf"].includes(name) ? (number ?? 0) > 0 : number !== null && !Number.isFinite(number);
}

/**
 * @param {App} app
 * @param {string} slot
 * @param {Value} value
 */
function typeCell(app, slot, value) {
  const { text, stride, device } = value.signature;
  const facts = [`stride [${stride.join(", ")}]`, device, `value ${value.id}`, `storage ${value.chunk.storage[value.at]} version ${value.chunk.version[value.at]}`];
  if (value.chunk.requiresGrad(value.at)) facts.push("requires grad");
  const hash = value.chunk.hashes?.[value.at];
  if (hash) facts.push(`hash ${hash}`);
  if (!app.source.isServed || !value.hasData) return h("span", { title: facts.join(", ") }, text);
  return h("a", { title: facts.join(", "), href: address({ ...currentPlace(), view: TENSOR, value: slot, dims: "", at: "" }) }, text);
}

/**
 * @param {App} app
 * @param {Rank} rank
 * @param {number} producer
 */
function madeBy(app, rank, producer) {
  return producer < 0 ? h("span", { class: "muted" }, "created before this step") : callLink(app, rank, rank.loaded.calls.name(producer));
}

/**
 * @param {App} app
 * @param {Rank} rank
 * @param {number[]} consumers
 */
function readBy(app, rank, consumers) {
  const { calls } = rank.loaded;
  const links = consumers.map((call) => h("div", {}, callLink(app, rank, calls.name(call))));
  if (links.length <= MOST_READERS + 1) return links;
  return [...links.slice(0, MOST_READERS), h("details", {}, h("summary", {}, `${links.length - MOST_READERS} more`), links.slice(MOST_READERS, 100))];
}
