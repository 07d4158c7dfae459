/** The list of runs, to choose from. */

import { LINES } from "../colours.js";
import { button, shareBar } from "../controls.js";
import { h, modified } from "../dom.js";
import { number } from "../numbers.js";
import { progress, subject, unitOf, words } from "./units.js";

export class RunList {
  // toggle: called with the id of a pressed run, and whether others stay chosen
  constructor(toggle) {
    this.toggle = toggle;
    this.list = h("ul", { class: "runs", "aria-label": "Runs" });
    this.root = h("div", { class: "scroller", onscroll: () => this.more() }, this.list);
    new ResizeObserver(() => this.more()).observe(this.list);
  }

  // colours: of the chosen runs, by id; key: what says which are chosen
  show(runs, colours, key) {
    const active = this.list.contains(document.activeElement) ? document.activeElement : null;
    const focused = active?.dataset.run;
    this.list.replaceChildren(...runs.map((run) => this.card(run, colours[run.id])));
    this.reveal(key);
    if (!focused) return;
    this.list.querySelector(`[data-run="${focused}"]`)?.focus({ preventScroll: true });
  }

  // Scroll the list to the first chosen run, once per choice; the page does not move.
  reveal(key) {
    const node = this.list.querySelector("[aria-pressed=true]");
    if (this.revealed === key || !node) return;
    this.revealed = key;
    const { root } = this;
    const top = node.getBoundingClientRect().top - this.list.getBoundingClientRect().top;
    const over = top + node.offsetHeight - root.clientHeight;
    const seen = top >= root.scrollTop && over <= root.scrollTop;
    if (!seen) root.scrollTop = Math.max(0, top - 60); // with a part of the run before it
  }

  // Whether the list of runs goes on above or below what is seen of it.
  more() {
    const { scrollTop, scrollHeight, clientHeight, classList } = this.root;
    classList.toggle("above", scrollTop > 4);
    classList.toggle("below", scrollHeight - clientHeight - scrollTop > 4);
  }

  card(run, colour) {
    const chosen = colour !== undefined;
    const style = chosen ? { background: LINES[colour] } : {};
    const press = (event) => this.toggle(run.id, event.shiftKey || modified(event));
    const who = h(
      "span",
      { class: "who" },
      h("i", { class: "dot", "aria-hidden": "true", style }),
      h("b", {}, run.name),
      run.error ? null : h("span", { class: `state ${run.state}` }, run.state),
    );
    const lines = run.error ? [run.error] : facts(run);
    const about = lines.map((text) => h("small", {}, text));
    const done = run.steps ? Math.min(run.step / run.steps, 1) : 0;
    const bar = run.error ? null : shareBar(done, "done");
    const more = { "aria-pressed": chosen, "data-run": run.id };
    return h("li", {}, button([who, about, bar], press, more));
  }
}

// What is said of a run, line by line.
function facts(run) {
  const players = Object.entries(run.players);
  const names = players.map(([name, model]) => (model ? `${name} (${model})` : name));
  const what = [subject(run), run.objective && `objective ${run.objective}`];
  const found = [what.filter(Boolean).join(" · ")];
  if (names.length) found.push(`players: ${names.join(", ")}`);
  if (run.loss === null) return [...found, progress(run)];
  const [loss] = run.losses;
  const value = `${words(loss)} ${number(run.loss)} ${unitOf(run, loss)}`;
  return [...found, `${progress(run)} · ${value}`.trim()];
}
