/** Links to calls, chips for phases and statuses. */

import { formatNumber } from "../data/numbers.js";
import { h } from "../frame/dom.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../data/rank.js").Rank} Rank */

/**
 * @param {App} app
 * @param {Rank} rank
 * @param {string} name of the call
 * @param {string} [slot]
 */
export function callLink(app, rank, name, slot = "") {
  return h("a", { class: "call-link", href: app.callAddress(rank, name) }, name, slot ? h("span", { class: "slot" }, `.${slot}`) : null);
}

/**
 * Return the name of a call, as a link where the report shows its step and rank.
 * @param {App} app
 * @param {{side?: string, step: number, rank: number}} where
 * @param {string} name
 */
export function namedCall(app, { side = "target", step, rank }, name) {
  const found = app.ranks.get(`${side}/${step}/${rank}`);
  return found ? callLink(app, found, name) : h("span", { class: "call-link" }, name);
}

/** Where the scale of errors goes from one colour to the next, in times the floor. */
export const SEVERITIES = [1, 30, 1000, 30_000];

/**
 * @param {number | null} ratio error over floor
 * @returns {number} 0 within the floor, up to 4
 */
export function severity(ratio) {
  return ratio === null ? 0 : SEVERITIES.filter((least) => ratio > least).length;
}

/**
 * @param {number | null} ratio error over floor
 */
export function ratioChip(ratio) {
  if (ratio === null || Number.isNaN(ratio)) return null;
  return h("span", { class: `ratio severity-${severity(ratio)}` }, `${formatNumber(ratio, 3)}×`);
}

/** @param {string} status */
export function statusChip(status) {
  return h("span", { class: `status status-${status || "none"}` }, status || "not judged");
}
