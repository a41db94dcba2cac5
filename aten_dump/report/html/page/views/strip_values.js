/** What colours the calls of the strip: for each way a number and a colour by call. */

import { OPTIMIZER, PHASES } from "../data/calls.js";
import { formatBytes, formatNumber } from "../data/numbers.js";
import { severity } from "../parts/links.js";

/** @typedef {import("../data/rank.js").Rank} Rank */

/**
 * @typedef {object} Painting
 * @property {Float32Array} height by call, 0 to 1
 * @property {Uint8Array} colour by call, number in `colours`
 * @property {string[]} colours names of the theme's variables, the mildest first: of calls on one pixel the last wins
 * @property {[string, string][]} legend name of the colour, what it means
 * @property {(call: number) => string} text what is said of a call
 */

/** @type {Record<string, {title: string, needsJudged?: boolean, needsValues?: boolean, paint: (rank: Rank) => Painting}>} */
export const WAYS = {
  phase: { title: "phase", paint: byPhase },
  error: { title: "error over floor", needsJudged: true, paint: byError },
  own: { title: "own error over floor", needsJudged: true, paint: byOwnError },
  nonfinite: { title: "NaN and Inf", needsValues: true, paint: byNonfinite },
  time: { title: "time", paint: byTime },
  bytes: { title: "bytes made", needsValues: true, paint: byBytes },
};

const PHASE_COLOURS = ["phase-optimizer", "phase-backward", "phase-recompute", "phase-forward"];
const ERROR_COLOURS = ["error-0", "accent-mid", "error-1", "error-2", "error-3", "error-4"];

/** @param {Rank} rank */
function blank(rank) {
  const { count } = rank.loaded.calls;
  return { height: new Float32Array(count), colour: new Uint8Array(count) };
}

/** @param {Rank} rank @returns {Painting} */
function byPhase(rank) {
  const { calls } = rank.loaded;
  const { height, colour } = blank(rank);
  for (let call = 0; call < calls.count; call++) {
    height[call] = calls.phase[call] === OPTIMIZER ? 0.5 : 0.8;
    colour[call] = PHASE_COLOURS.indexOf(`phase-${PHASES[calls.phase[call]]}`);
  }
  const present = PHASES.filter((_, phase) => calls.phase.includes(phase));
  return { height, colour, colours: PHASE_COLOURS, legend: present.map((phase) => [`phase-${phase}`, phase]), text: (call) => PHASES[calls.phase[call]] };
}

/**
 * @param {Rank} rank
 * @param {(call: number) => number} ratioOf NaN where nothing was measured
 * @param {string} what
 * @returns {Painting}
 */
function byRatio(rank, ratioOf, what) {
  const { height, colour } = blank(rank);
  for (let call = 0; call < height.length; call++) {
    const ratio = ratioOf(call);
    if (Number.isNaN(ratio)) height[call] = 0.12;
    else {
      height[call] = Math.min(1, 0.2 + Math.max(0, Math.log10(Math.max(ratio, 1))) / 6);
      colour[call] = 1 + severity(ratio);
    }
  }
  const legend = /** @type {[string, string][]} */ ([["accent-mid", "within the floor"], ["error-1", "to 30×"], ["error-2", "to 1000×"], ["error-3", "to 30,000×"], ["error-4", "beyond"], ["error-0", "not measured"]]);
  const text = (/** @type {number} */ call) => Number.isNaN(ratioOf(call)) ? "not measured" : `${formatNumber(ratioOf(call), 3)}× ${what}`;
  return { height, colour, colours: ERROR_COLOURS, legend, text };
}

/** @param {Rank} rank */
function byError(rank) {
  const { judged } = rank.loaded;
  return byRatio(rank, (call) => judged?.overFloor(call) ?? NaN, "the floor off");
}

/** @param {Rank} rank */
function byOwnError(rank) {
  const { judged } = rank.loaded;
  return byRatio(rank, (call) => judged?.ratio[call] ?? NaN, "the floor off, given its inputs");
}

/** @param {Rank} rank */
function results(rank) {
  return (/** @type {number} */ call) => {
    const found = rank.argumentsNow(call);
    return found ? [...found.of("output"), ...found.of("mutated")].map(([, value]) => value) : [];
  };
}

const UNKNOWN = 0, FINITE = 1, MASK = 2, PASSED_ON = 3, MADE = 4;
const NONFINITE_COLOURS = ["error-0", "accent-mid", "mask", "error-2", "error-4"];
const NONFINITE_HEIGHTS = [0.12, 0.3, 0.5, 0.75, 1];

/**
 * Masks are the program's intent, NaN and Inf that a call made are faults, and what was given them passes them on.
 * @param {Rank} rank
 * @returns {Painting}
 */
function byNonfinite(rank) {
  const { height, colour } = blank(rank);
  const valuesOf = results(rank);
  const kinds = rank.outline.nonfinite?.calls_by_kind;
  const made = new Set(numbersIn(kinds?.made));
  const masks = new Set(numbersIn(kinds?.mask).flatMap((call) => valuesOf(call).map(({ index }) => index)));
  const counts = new Float64Array(height.length);
  for (let call = 0; call < counts.length; call++) {
    const bad = valuesOf(call).filter((value) => value.nonfinite > 0);
    counts[call] = bad.reduce((sum, value) => sum + value.nonfinite, 0);
    if (!bad.length) colour[call] = valuesOf(call).some((value) => value.hasStatistics) ? FINITE : UNKNOWN;
    else if (made.has(call)) colour[call] = MADE;
    else colour[call] = bad.every(({ index }) => masks.has(index)) ? MASK : PASSED_ON;
    height[call] = NONFINITE_HEIGHTS[colour[call]];
  }
  const meanings = ["not known", "finite", "mask", kinds ? "passes NaN or Inf on" : "NaN or Inf, masks among them", "makes NaN or Inf"];
  const legend = /** @type {[string, string][]} */ ([MADE, PASSED_ON, MASK, FINITE, UNKNOWN].filter((kind) => colour.includes(kind)).map((kind) => [NONFINITE_COLOURS[kind], meanings[kind]]));
  const text = (/** @type {number} */ call) => `${meanings[colour[call]]}${counts[call] ? `: ${counts[call]} NaN or Inf` : ""}`;
  return { height, colour, colours: NONFINITE_COLOURS, legend, text };
}

/**
 * @param {string | undefined} ranges "3-5|9"
 * @returns {number[]}
 */
function numbersIn(ranges) {
  return (ranges ?? "").split("|").filter(Boolean).flatMap((range) => {
    const [low, high = low] = range.split("-").map(Number);
    return Array.from({ length: high - low + 1 }, (_, at) => low + at);
  });
}

/**
 * @param {Rank} rank
 * @param {(call: number) => number} sizeOf
 * @param {(call: number) => string} text
 * @param {string} what
 * @returns {Painting}
 */
function bySize(rank, sizeOf, text, what) {
  const { height, colour } = blank(rank);
  const { tree } = rank.loaded;
  let most = 0;
  for (let call = 0; call < height.length; call++) if (tree.size[call] === 1) most = Math.max(most, sizeOf(call));
  for (let call = 0; call < height.length; call++) {
    const share = most ? sizeOf(call) / most : 0;
    height[call] = share > 0 ? Math.max(0.04, Math.min(share, 1)) : 0;
    colour[call] = share > 0.5 ? 2 : share > 0.1 ? 1 : 0;
  }
  const legend = /** @type {[string, string][]} */ ([["accent", `height: ${what}`]]);
  return { height, colour, colours: ["phase-recompute", "accent-mid", "accent"], legend, text };
}

/** @param {Rank} rank */
function byTime(rank) {
  const { calls } = rank.loaded;
  return bySize(rank, (call) => calls.durationNs(call), (call) => calls.duration(call), "time");
}

/** @param {Rank} rank */
function byBytes(rank) {
  const valuesOf = results(rank);
  const { count } = rank.loaded.calls;
  const sizes = Float64Array.from({ length: count }, (_, call) => valuesOf(call).reduce((sum, value) => sum + value.signature.nbytes, 0));
  return bySize(rank, (call) => sizes[call], (call) => formatBytes(sizes[call]), "bytes of the results");
}
