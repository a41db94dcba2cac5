/** One call in full. */

import { PHASES } from "../data/calls.js";
import { MARK } from "../data/chunks.js";
import { address } from "../frame/address.js";
import { h, replace } from "../frame/dom.js";
import { backwardOf } from "../frame/keyboard.js";
import { differences } from "../parts/differences.js";
import { callLink, ratioChip, statusChip } from "../parts/links.js";
import { sourceLine } from "../parts/source_line.js";
import { valueTable } from "../parts/value_table.js";

/** @typedef {import("../frame/app.js").App} App */
/** @typedef {import("../frame/app.js").View} View */
/** @typedef {import("../frame/address.js").Place} Place */
/** @typedef {import("../data/rank.js").Rank} Rank */
/** @typedef {import("../data/rank.js").Arguments} Arguments */

const MOST_LINKS = 24;
const MOST_OPEN = 40; // nodes of a kernel that are shown at once

/** @implements {View} */
export class CallView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.element = h("section", { class: "view call-view", "aria-label": "Call" });
    this.shown = "";
  }

  forget() {
    this.shown = "";
  }

  /** @param {Place} place */
  async show(place) {
    const rank = await this.app.rankAt(place);
    const call = rank && place.call ? rank.loaded.calls.find(place.call) : -1;
    if (!rank || call < 0) return this.nothing(place, rank);
    const key = `${rank.key} ${call}`;
    if (this.shown === key) return;
    this.shown = key;
    const args = await rank.arguments(call);
    if (this.shown !== key) return;
    replace(this.element, this.head(rank, call, args), this.columns(rank, call, args), this.computed(rank, call), differences(rank.loaded.judged?.rows(call) ?? []),
      await this.tensors("Arguments", rank, args, "input"), this.literals(rank, call, args),
      await this.tensors("Results", rank, args, "output"), await this.tensors("Written in place", rank, args, "mutated"),
      this.replayCommand(rank, call));
    document.getElementById("main")?.scrollTo(0, 0);
  }

  /**
   * @param {Place} place
   * @param {Rank | null} rank
   */
  nothing(place, rank) {
    this.shown = "";
    const text = place.call && rank ? `There is no call ${place.call} in step ${rank.step}, rank ${rank.rank}.` : "No call is selected.";
    replace(this.element, h("p", { class: "empty" }, text, " ", h("a", { href: address({ ...place, view: "calls", call: "" }) }, "Choose one among the calls.")));
  }

  /**
   * @param {Rank} rank
   * @param {number} call
   * @param {Arguments} args
   */
  head(rank, call, args) {
    const { calls, judged } = rank.loaded;
    const facts = [calls.ops[calls.op[call]].op, calls.kind(call), PHASES[calls.phase[call]]];
    return h("div", { class: "call-head" },
      h("p", { class: "trail" }, this.trail(rank, call)),
      h("h1", { class: "mono" }, calls.name(call)),
      h("p", { class: "facts" }, facts.map((fact) => h("span", { class: "fact" }, fact)),
        judged && judged.status[call] ? statusChip(judged.statusOf(call)) : null,
        judged ? ratioChip(judged.ratio[call]) : null),
      args.error ? h("p", { class: "raised" }, `raised ${args.error}`) : null,
      calls.unfinished.has(call) ? h("p", { class: "raised" }, "The recording ended before this call did.") : null);
  }

  /**
   * @param {Rank} rank
   * @param {number} call
   */
  trail(rank, call) {
    const { calls, tree } = rank.loaded;
    const outer = [];
    for (let at = tree.parent[call]; at >= 0; at = tree.parent[at]) outer.unshift(at);
    const step = `${this.app.comparison ? `${rank.side}, ` : ""}step ${rank.step}, rank ${rank.rank}`;
    return [step, ...outer.slice(-6).flatMap((at) => [" › ", callLink(this.app, rank, calls.name(at))])];
  }

  /**
   * @param {Rank} rank
   * @param {number} call
   * @param {Arguments} args
   */
  columns(rank, call, args) {
    return h("div", { class: "two" }, this.source(rank, call), this.relations(rank, call, args));
  }

  /**
   * @param {Rank} rank
   * @param {number} call
   */
  source(rank, call) {
    const frames = rank.loaded.calls.frameList(call);
    const line = (/** @type {import("../data/calls.js").Frame} */ frame) => h("li", {},
      h("span", { class: "mono file" }, `${frame.file}:${frame.line}`), " in ", h("span", { class: "mono" }, frame.function));
    const yours = frames.filter((frame) => frame.user);
    const others = frames.filter((frame) => !frame.user);
    return h("section", { class: "card" }, h("h2", {}, "Source"),
      frames.length ? null : h("p", { class: "muted" }, "No source lines were recorded."),
      yours.length ? h("ol", { class: "frames" }, yours.map(line)) : frames.length ? h("p", { class: "muted" }, "No frame of your own code.") : null,
      others.length ? h("details", {}, h("summary", {}, `${others.length} of torch and libraries`), h("ol", { class: "frames" }, others.map(line))) : null);
  }

  /**
   * @param {Rank} rank
   * @param {number} call
   * @param {Arguments} args
   */
  relations(rank, call, args) {
    const { calls, tree, judged } = rank.loaded;
    const belonging = rank.belongingTo(call);
    const byPhase = (/** @type {string} */ phase) => belonging.filter((other) => PHASES[calls.phase[other]] === phase);
    const other = this.app.partnerOf(rank);
    const partner = judged ? judged.partner[call] : -1;
    /** @type {[string, (Node | string)[]][]} */
    const rows = [
      ["Module", [calls.fqn(call) ? h("a", { class: "mono", href: address({ ...this.app.placeOf(rank), view: "graph", module: calls.fqn(call) }) }, calls.fqn(call)) : ""]],
      ["Forward", this.links(rank, calls.forward[call] >= 0 ? [calls.forward[call]] : [])],
      ["Backward", this.links(rank, byPhase("backward"), backwardOf(rank, call))],
      ["Recomputed by", this.links(rank, byPhase("recompute"))],
      ["Ran in it", this.links(rank, tree.children(call))],
      ["Partner", other && partner >= 0 ? [this.partnerLink(other, partner)] : []],
      ["Time", calls.duration(call) ? [calls.duration(call), ` from ${(calls.startUs[call] / 1000).toFixed(3)} ms`] : []],
      ["Numbers", [`call ${rank.loaded.calls.ids[call] + call}`, args.sequenceNr >= 0 ? `, autograd's ${args.sequenceNr}` : "", calls.thread[call] ? `, thread ${calls.thread[call]}` : ""]],
    ];
    const shown = rows.filter(([, content]) => content.some((part) => part !== ""));
    return h("section", { class: "card" }, h("h2", {}, "Belongs to"),
      h("dl", { class: "pairs" }, shown.flatMap(([name, content]) => [h("dt", {}, name), h("dd", {}, content)])));
  }

  /**
   * @param {Rank} rank
   * @param {number[]} found
   * @param {number} [first] to be put first
   */
  links(rank, found, first = -1) {
    const { calls } = rank.loaded;
    const sorted = first >= 0 ? [first, ...found.filter((call) => call !== first)] : found;
    const links = sorted.slice(0, MOST_LINKS).map((call) => h("div", {}, callLink(this.app, rank, calls.name(call))));
    if (sorted.length > MOST_LINKS) links.push(h("div", { class: "muted" }, `and ${sorted.length - MOST_LINKS} more`));
    if (links.length <= 4) return links;
    return [...links.slice(0, 3), h("details", {}, h("summary", {}, `${sorted.length - 3} more`), links.slice(3))];
  }

  /**
   * @param {Rank} other
   * @param {number} partner
   */
  partnerLink(other, partner) {
    const holder = h("span", {});
    this.app.loaded(other).then(({ loaded }) => {
      const name = loaded.calls.name(partner);
      replace(holder, callLink(this.app, other, name), h("span", { class: "muted" }, ` in the ${other.side}`));
    });
    return holder;
  }

  /**
   * The ops that a kernel of compiled code computes, each with its line of the program.
   * @param {Rank} rank
   * @param {number} call
   */
  computed(rank, call) {
    const kernel = rank.loaded.calls.kernel(call);
    if (!kernel) return null;
    const line = (/** @type {import("../data/calls.js").Kernel["nodes"][number]} */ [name, op, reads, made, source]) => h("tr", {},
      h("td", { class: "mono" }, name), h("td", { class: "mono" }, `${op}(${reads})`), h("td", { class: "mono" }, made), h("td", {}, source ? sourceLine(source) : ""));
    const heads = ["node", "computes", "makes", "source"].map((text) => h("th", { scope: "col" }, text));
    return h("section", { class: "card" }, h("details", { class: "computed", open: kernel.nodes.length <= MOST_OPEN },
      h("summary", {}, h("h2", {}, `Computes ${kernel.nodes.length} nodes of graph ${kernel.graph}`)),
      h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, kernel.nodes.map(line)))));
  }

  /**
   * @param {string} title
   * @param {Rank} rank
   * @param {Arguments} args
   * @param {"input" | "output" | "mutated"} group
   */
  async tensors(title, rank, args, group) {
    const found = args.of(group);
    if (!found.length) return null;
    return h("section", { class: "card" }, h("h2", {}, title), await valueTable(this.app, rank, found, group === "input", title));
  }

  /**
   * Arguments that are no tensors.
   * @param {Rank} rank
   * @param {number} call
   * @param {Arguments} args
   */
  literals(rank, call, args) {
    const names = rank.loaded.calls.ops[rank.loaded.calls.op[call]].arguments;
    const given = args.template.inputs.filter(([, text]) => text.replaceAll(MARK, "").replace(/[[\](), ]/g, "") !== "" || text === "[]" || text === "()");
    if (!given.length) return null;
    return h("section", { class: "card" }, h("h2", {}, "Other arguments"), h("dl", { class: "pairs mono" }, given.flatMap(([key, text]) => {
      const name = /^\d+$/.test(key) ? names[Number(key)] ?? key : key;
      return [h("dt", {}, name), h("dd", {}, text.replaceAll(MARK, "tensor"))];
    })));
  }

  /**
   * @param {Rank} rank
   * @param {number} call
   */
  replayCommand(rank, call) {
    const { calls } = rank.loaded;
    if (calls.kind(call) === "node" || !["tensor", "full"].includes(rank.outline.config.data)) return null;
    const place = `--step ${rank.step} --rank ${rank.rank}`;
    const command = `aten-dump replay ${quoted(this.app.path(rank.side))} ${quoted(calls.name(call))} ${place}`;
    const button = h("button", { type: "button", onclick: async () => {
      await navigator.clipboard.writeText(command);
      replace(button, "Copied");
    } }, "Copy");
    return h("section", { class: "card" }, h("h2", {}, "Run it again"), h("p", { class: "command" }, h("code", {}, command), button));
  }
}

/** @param {string} text for a shell */
function quoted(text) {
  return /^[\w./@%+=:,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
