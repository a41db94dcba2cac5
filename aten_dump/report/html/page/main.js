/** The start of the page: reads the outline, builds the frame, and shows the view that the address names. */

import { FileSource, ServerSource } from "./data/source.js";
import { currentPlace } from "./frame/address.js";
import { App } from "./frame/app.js";
import { h, replace } from "./frame/dom.js";
import { follow } from "./frame/following.js";
import { Header, TITLES } from "./frame/header.js";
import { listenToKeys } from "./frame/keyboard.js";
import { shownWithPatience, showReadsBeside } from "./parts/waiting.js";
import { AnswerView } from "./views/answer.js";
import { CallView } from "./views/call.js";
import { CallsView } from "./views/calls.js";
import { GraphView } from "./views/graph.js";
import { MemoryView } from "./views/memory.js";
import { StepsView } from "./views/steps.js";
import { StripView } from "./views/strip.js";
import { TensorView } from "./views/tensor.js";

/** @typedef {import("./frame/app.js").View} View */

async function start() {
  const root = /** @type {HTMLElement} */ (document.getElementById("page"));
  const file = new FileSource();
  const outline = (await file.section("outline")).json;
  const server = outline.generation === null ? null : new ServerSource();
  const app = new App(server ?? file, outline);
  const header = new Header(app);
  /** @type {Record<string, View>} */
  const views = {
    answer: new AnswerView(app), strip: new StripView(app, (text) => header.say(text)), calls: new CallsView(app, (text) => header.say(text)),
    call: new CallView(app), graph: new GraphView(app), steps: new StepsView(app), memory: new MemoryView(app),
  };
  if (server) views.tensor = new TensorView(app, server);
  const main = h("main", { id: "main", tabindex: "-1" });
  replace(root, h("a", { class: "skip", href: "#main", onclick: (/** @type {Event} */ e) => (e.preventDefault(), main.focus()) }, "Skip to content"), header.element, main);
  listenToKeys(app, header.search, () => views[currentPlace().view] ?? views.answer);
  let newest = 0;
  const show = async () => {
    const mine = ++newest;
    const place = currentPlace();
    const view = views[place.view] ?? views.answer;
    header.show(place);
    document.title = `${place.call && place.view === "call" ? place.call : TITLES[place.view]} · aten-dump report`;
    if (main.firstChild !== view.element) replace(main, view.element);
    const isNewest = () => mine === newest; // one that is slow to show may end after what came next
    await shownWithPatience(main, view, place, isNewest);
    if (isNewest()) document.documentElement.setAttribute("data-shown", place.view);
  };
  window.addEventListener("hashchange", show);
  printAnswer(main, views.answer);
  showReadsBeside(main);
  await show();
  if (server) {
    follow(app, server, () => {
      for (const view of Object.values(views)) view.renew?.();
      show();
    });
  }
  performance.mark("first-view");
}

/**
 * On paper goes the answer, whatever is shown.
 * @param {HTMLElement} main
 * @param {View} answer
 */
function printAnswer(main, answer) {
  /** @type {ChildNode | null} */
  let shown = null;
  window.addEventListener("beforeprint", () => {
    shown = main.firstChild;
    answer.show(currentPlace());
    replace(main, answer.element);
  });
  window.addEventListener("afterprint", () => replace(main, shown));
}

start();
