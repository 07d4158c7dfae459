/** PanedView: a view with one pane, or two side by side. */

import { HeatMap, largest, whole } from "../attention/heat_map.js";
import { button } from "../controls.js";
import { h } from "../dom.js";
import { part } from "../figures/sheet.js";
import { View } from "./view.js";

export class PanedView extends View {
  constructor(frame, name, title, lead, PaneClass) {
    super(frame, name, title, lead);
    this.PaneClass = PaneClass;
    this.panes = [new PaneClass(this)];
    this.toggle = button("Side by side", () => this.split(this.panes.length === 1), {
      class: "beside-toggle",
      "aria-pressed": false,
      title: "Compare two models, or two inputs",
    });
    this.heading.append(this.toggle);
    this.row = h("div", { class: "panes" }, this.panes[0].root);
    this.map = this.differenceMap();
    this.why = h("p", { class: "note" });
    this.difference = h(
      "section",
      { class: "difference", hidden: true, "aria-label": "Difference" },
      h("h2", {}, "Difference: right minus left"),
      this.why,
      this.map.root,
    );
    this.root.append(this.row, this.difference);
  }

  differenceMap() {
    return new HeatMap({ signed: true, tall: 360, what: "difference of attention weights" });
  }

  enter(state) {
    const given = Object.keys(state).length > 0;
    if (!given && this.entered) return this.remember(); // as it was left
    this.entered = true;
    const second = Object.entries(state).filter(([key]) => key.endsWith("2"));
    this.arrange(second.length > 0);
    this.panes[0].enter(state);
    const unnumbered = second.map(([key, value]) => [key.slice(0, -1), value]);
    this.panes[1]?.enter(Object.fromEntries(unnumbered));
  }

  // The server answers again.
  back() {
    for (const pane of this.panes) {
      if (pane.activity.state === "failed" && !pane.repeated) {
        pane.repeated = true; // once: it may be what stops the server
        pane.run(false);
        continue;
      }
      if (pane.inside?.missing) pane.inside.draw();
      pane.resume();
    }
  }

  // Show one pane or two.
  arrange(two) {
    if (two && this.panes.length === 1) this.panes.push(this.second ??= new this.PaneClass(this));
    if (!two) this.panes.length = 1;
    this.row.replaceChildren(...this.panes.map((pane) => pane.root));
    this.root.classList.toggle("split", two);
    this.toggle.setAttribute("aria-pressed", two);
    this.difference.hidden = true;
  }

  // Another model that can be compared with the first pane's.
  partner({ known, model }) {
    const fits = ({ id, examples }) =>
      id !== model?.id && String(examples) === String(model?.examples);
    return Object.values(known ?? {}).find(fits);
  }

  // The user's choice: the second pane starts with the first one's input, and another model if
  // there is one.
  split(two) {
    this.arrange(two);
    if (two) {
      const [{ state }] = this.panes;
      const model = this.partner(this.panes[0])?.id ?? state.model;
      const own = { ...state, model, layer: null, head: null, at: null };
      const given = Object.entries(own).filter(([, value]) => value !== null && value !== "");
      this.panes[1].enter(Object.fromEntries(given.map(([key, value]) => [key, inAddress(value)])));
    }
    this.remember(true);
    this.compare();
  }

  // What differs from the state that a model starts with; keys of the second pane end with 2.
  state() {
    const differing = (pane, end) => {
      const initial = pane.initial();
      const differs = ([key, value]) => JSON.stringify(value) !== JSON.stringify(initial[key]);
      return Object.entries(pane.state)
        .filter((entry) => entry[0] === "model" || differs(entry))
        .map(([key, value]) => [key + end, value]);
    };
    const [first, second] = this.panes;
    const all = [...differing(first, ""), ...(second ? differing(second, "2") : [])];
    return Object.fromEntries(all);
  }

  // The difference of the two maps, where they are between the same tokens.
  compare() {
    this.differing = null;
    const [a, b] = this.panes.map((pane) => pane.inside.shown);
    this.difference.hidden = !a || !b;
    if (this.difference.hidden) return;
    const same = String(a.rows) === String(b.rows) && String(a.keys) === String(b.keys);
    const small = a.loaded && b.loaded;
    this.map.root.hidden = !same || !small;
    this.why.textContent = this.remark(same, small);
    if (this.map.root.hidden) return;
    const minus = (row, i) => row.map((x, j) => b.loaded.weights[i][j] - x);
    this.differing = a.loaded.weights.map(minus);
    const name = ({ model, state, inside }) => `${model?.name ?? state.model} (${inside.title()})`;
    const [left, right] = this.panes;
    this.map.call(`${name(right)} − ${name(left)}`, left.inside.map.axes);
    this.map.show(whole(a.rows, a.keys, this.differing, largest(this.differing)), true);
  }

  // Why there is no difference, or what to keep in mind when reading it.
  remark(same, small) {
    if (!same) {
      return "The two maps are not between the same tokens: there is no difference cell by cell.";
    }
    if (!small) return "These texts are too long for a difference map.";
    const heads = ({ inside: { group, state } }) => {
      if (state.layer === null) return group.layers * group.heads;
      return state.head === null ? group.heads : 1;
    };
    const [left, right] = this.panes.map(heads);
    if (left === right) return "";
    const many = `${left} head${left > 1 ? "s" : ""}, the right one of ${right}`;
    return `The left map is of ${many}: a mean of many heads is softer than one head.`;
  }

  caption() {
    const parts = this.panes.map((pane) => pane.caption());
    return {
      title: `${this.title}: ${[...new Set(parts.map((one) => one.title))].join(" | ")}`,
      source: parts.map((one) => one.source).join(" | "),
      file: [this.name, ...parts.map((one) => one.file)].join("-"),
    };
  }

  figures() {
    const [left, right] = this.panes.map((pane) => pane.figures());
    if (!right) return left;
    const [first, second] = this.panes.map((pane) => pane.caption().source);
    const sides = [part(`Left: ${first}`), ...left, part(`Right: ${second}`), ...right];
    if (!this.differing) return sides;
    return [...sides, part("Difference: right minus left"), this.map.svg()];
  }

  async data() {
    const all = await Promise.all(this.panes.map((pane) => pane.data()));
    return all.length === 1 ? all[0] : { panes: all, difference: this.differing };
  }
}

/** A value of a state as text of an address. */
export const inAddress = (value) =>
  typeof value === "object" ? JSON.stringify(value) : String(value);
