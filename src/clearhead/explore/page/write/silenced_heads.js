/** Heads that are switched off: the buttons, and what it changes for the text on screen. */

import { post } from "../api.js";
import { TokenText } from "../attention/token_text.js";
import { button } from "../controls.js";
import { h } from "../dom.js";
import { textFigure } from "../figures/small_figures.js";
import { counted, number, spelt, total } from "../numbers.js";

/** Heads by layer, in words: "layer 0 head 1, layer 2 head 0". */
export function headNames(off) {
  const all = Object.entries(off).flatMap(([layer, heads]) =>
    heads.map((head) => `layer ${layer} head ${head}`)
  );
  return all.join(", ");
}

/** How many heads are switched off. */
export const countOff = (off) => Object.values(off).flat().length;

export class SilencedHeads {
  // grid: the heads to choose from; write: called to write without those that are off
  constructor({ grid, write }) {
    Object.assign(this, { grid, write, effects: null });
    this.switches = h("div", { class: "row switches" });
    this.effect = h("section", { class: "effect", hidden: true });
  }

  // off: the heads that are switched off now; without: those that the text was written without
  tell(off, without) {
    const active = this.switches.contains(document.activeElement) ? document.activeElement : null;
    const kind = active?.className.split(" ").at(-1);
    const changed = JSON.stringify(off) !== JSON.stringify(without);
    const buttons = [this.switch(), countOff(off) && this.allOn(off), changed && this.again(off)];
    this.switches.replaceChildren(...buttons.filter(Boolean));
    if (!kind) return;
    const same = this.switches.querySelector(`.${kind}`);
    (same ?? this.switches.querySelector("button")).focus();
  }

  // The button that switches the chosen head.
  switch() {
    const [layer, head] = this.grid.at;
    const disabled = layer === null || head === null;
    const to = this.grid.silenced(layer, head) ? "on" : "off";
    const text = disabled
      ? "Choose a head to switch it off"
      : `Switch layer ${layer}, head ${head} ${to}`;
    return button(text, () => this.grid.toggle(layer, head), { class: "switch", disabled });
  }

  allOn(off) {
    const clear = () => {
      for (const layer of Object.keys(off)) delete off[layer];
      this.grid.draw();
      this.grid.switched();
    };
    return button("All on", clear, { class: "all-on" });
  }

  again(off) {
    const many = countOff(off);
    const without = `Write without ${counted(many, "head")}`;
    const text = many ? without : "Write with all heads";
    return button(text, () => this.write(structuredClone(off)), { class: "go without" });
  }

  hide() {
    this.effect.hidden = true;
  }

  // Request the log-probability of every token of an inspection with and without the heads.
  async measure(look, off, spaces, signal, current) {
    this.effect.hidden = !countOff(off);
    this.effects = null;
    if (this.effect.hidden || !look) return;
    try {
      const found = await post("looks/without", { look: look.id, off }, signal);
      if (!current()) return;
      const { tokens, before, after } = found;
      // the first token has no probability
      const change = before.map((x, i) => (x === null ? 0 : after[i] - x));
      this.effects = { off: structuredClone(off), tokens, before, after };
      this.show(change, spaces);
    } catch (trouble) {
      this.effect.replaceChildren(h("p", { class: "note" }, trouble.message));
    }
  }

  show(change, spaces) {
    const { off, tokens, before, after } = this.effects;
    const sum = total(change);
    const most = Math.max(...change.map(Math.abs)) || 1;
    const note = h("p", { class: "note" }, " ");
    const tell = (i) => {
      note.textContent = " ";
      if (i === null || before[i] === null) return;
      const both = `${number(before[i])} → ${number(after[i])}`;
      note.textContent = `${spelt(tokens[i])}: log-probability ${both} (${number(change[i])})`;
    };
    const text = new TokenText({ point: tell });
    text.show(tokens, { spaces });
    text.shade(
      change.map((x) => x / most),
      true,
    );
    const each = number(sum / Math.max(1, tokens.length - 1));
    this.effect.replaceChildren(
      h("h2", {}, `Without ${headNames(off)}`),
      h(
        "p",
        {},
        `The log-probability of this text changes by ${
          number(sum)
        } nats, ${each} per token. Orange tokens become less likely, blue ones more.`,
      ),
      text.root,
      note,
    );
  }

  svg() {
    const { off, tokens, before, after } = this.effects;
    const change = before.map((x, i) => (x === null ? 0 : after[i] - x));
    return textFigure(
      `Without ${headNames(off)}: change in log-probability`,
      tokens,
      change,
      "nats",
    );
  }
}
