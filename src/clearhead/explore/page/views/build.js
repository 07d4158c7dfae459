/**
 * Build: attention by hand with editable numbers, position encodings, and a recurrent memory beside
 * attention.
 */

import { Attention } from "../build/attention.js";
import { Memory } from "../build/memory.js";
import { copy, DEFAULTS, differences, PANELS, read } from "../build/options.js";
import { Positions } from "../build/positions.js";
import { segments } from "../controls.js";
import { h } from "../dom.js";
import { View } from "../panes/view.js";

/** The view with its three panels. */
export class Build extends View {
  constructor(frame) {
    super(frame, "build", "Build", "");
    this.options = copy(DEFAULTS);
    this.panel = "attention";
    this.panels = {
      attention: new Attention(this),
      positions: new Positions(this),
      memory: new Memory(this),
    };
    this.lead = this.heading.querySelector(".lead");
    this.tabs = segments(
      "panel",
      [
        ["attention", "Attention by hand"],
        ["positions", "Positions"],
        ["memory", "Memory and attention"],
      ],
      this.panel,
      (panel) => this.switch(panel),
    );
    this.tabs.id = "panels";
    this.root.append(
      h("div", { class: "top" }, this.tabs, this.activity.root),
      ...Object.values(this.panels).map((panel) => panel.root),
    );
  }

  get current() {
    return this.panels[this.panel];
  }

  // The address of the panel that is left names it, so that Back leads there and not to a plain
  // link.
  switch(panel) {
    if (this.plain) this.remember();
    this.plain = false;
    this.show(panel);
    this.remember(true);
    this.current.open();
  }

  enter(state) {
    this.plain = !Object.keys(state).length;
    if ("panel" in state || "m" in state) {
      const { found, whole } = read(state.m);
      Object.assign(this.options, found);
      this.panel = PANELS.includes(state.panel) ? state.panel : "attention";
      this.activity.say(
        whole ? "" : "Some options of this address cannot be used: their defaults are shown.",
      );
    }
    this.show(this.panel);
    this.current.open();
  }

  leave() {
    this.current.close();
  }

  back() {
    this.current.open();
  }

  show(name) {
    if (name !== this.panel) this.current.close();
    this.panel = name;
    for (const [key, { root }] of Object.entries(this.panels)) root.hidden = key !== name;
    for (const input of this.tabs.querySelectorAll("input")) input.checked = input.value === name;
    this.lead.replaceChildren(...this.current.lead());
  }

  // A panel shows a result: problems are gone, and the sentence at the top has the formula in
  // force.
  settled() {
    this.activity.become("idle");
    this.lead.replaceChildren(...this.current.lead());
  }

  // m is written even if nothing differs from the defaults: such an address is not that of a step
  // of the guided path.
  state() {
    return { panel: this.panel, m: differences(this.options) };
  }

  caption() {
    return this.current.caption();
  }
  figures() {
    return this.current.figures();
  }
  data() {
    return { panel: this.panel, ...this.current.data() };
  }
}
