// A grid to choose a head, a layer or all of them, coloured by a statistic of each head.

import { colour, css, ink } from "./colours.js";
import { choose, h, number, themed } from "./dom.js";

export const STATISTICS = [["entropy", "entropy"], ["distance", "distance"], ["maximum", "largest weight"], ["sink", "first token"]];

export class HeadPicker {
  // off: silenced heads by layer, or null where heads cannot be silenced
  constructor({ pick, off = null, statistic = "entropy", measured = null }) {
    Object.assign(this, { pick, off, statistic, measured, layers: 0, heads: 0, told: [], at: [null, null] });
    this.grid = h("div", { class: "heads", role: "grid", "aria-label": "Layers and heads" });
    this.note = h("p", { class: "note" }, " ");
    this.root = h("div", { class: "picker" },
      choose("coloured by", STATISTICS, statistic, (value) => { this.statistic = value; this.draw(); this.measured?.(value); }),
      this.grid, this.note);
    themed(this, "draw");
  }

  show(layers, heads, [layer, head] = [null, null]) {
    if (layers !== this.layers || heads !== this.heads) this.told = [];
    Object.assign(this, { layers, heads, at: [layer !== null && layer < layers ? layer : null, head !== null && head < heads ? head : null] });
    this.draw();
  }

  // Add the statistics of one layer.
  tell(line) { this.told[line.layer] = line; this.draw(); }
  forget() { this.told = []; this.draw(); }

  draw() {
    const all = this.told.flatMap((one) => one?.[this.statistic] ?? []).filter((x) => x !== null);
    const low = Math.min(...all), high = Math.max(...all);
    const focused = this.grid.contains(document.activeElement) ? document.activeElement.dataset.at : null;
    const rows = [];
    const cell = (layer, head, text, value, title) => {
      const on = this.at[0] === layer && this.at[1] === head, gone = layer !== null && head !== null && this.off?.[layer]?.includes(head);
      const node = h("button", { type: "button", role: "gridcell", class: `${on ? "on" : ""}${gone ? " off" : ""}${value === undefined ? " plain" : ""}`, title, "aria-label": title, "aria-selected": on,
        "data-at": `${layer},${head}`, tabindex: on ? 0 : -1, onclick: (event) => this.chosen(layer, head, event), onkeydown: (event) => this.key(event),
        onpointerenter: () => { this.note.textContent = title; }, onfocus: () => { this.note.textContent = title; } }, text);
      if (value !== undefined && value !== null && !gone) {
        const fill = colour(high > low ? 0.08 + 0.86 * (value - low) / (high - low) : 0.3);
        node.style.setProperty("background-color", css(fill));
        node.style.setProperty("color", ink(fill));
      }
      return node;
    };
    const word = STATISTICS.find(([id]) => id === this.statistic)[1];
    rows.push(h("div", { role: "row" }, cell(null, null, "all", undefined, "the mean over all layers and heads"),
      this.heads > 1 ? Array.from({ length: this.heads }, (_, i) => h("span", { class: "name", role: "columnheader" }, i)) : null));
    for (let layer = 0; layer < this.layers; layer++) {
      rows.push(h("div", { role: "row" }, cell(layer, null, `L${layer}`, undefined, `layer ${layer}, the mean over its heads`),
        Array.from({ length: this.heads }, (_, head) => {
          const value = this.told[layer]?.[this.statistic]?.[head];
          const gone = this.off?.[layer]?.includes(head);
          return cell(layer, head, gone ? "×" : "", value ?? undefined, `layer ${layer}, head ${head}${value === undefined || value === null ? "" : `: ${word} ${number(value)}`}${gone ? ", switched off" : ""}`);
        })));
    }
    this.grid.replaceChildren(...rows);
    if (!this.grid.querySelector('[tabindex="0"]')) this.grid.querySelector("button")?.setAttribute("tabindex", "0");
    if (focused) this.grid.querySelector(`[data-at="${focused}"]`)?.focus();
  }

  chosen(layer, head, event) {
    if (event.shiftKey && this.off && head !== null) { this.toggle(layer, head); return; }
    this.at = [layer, head];
    this.draw();
    this.pick(layer, head);
  }

  toggle(layer, head) {
    const own = new Set(this.off[layer] ?? []);
    if (!own.delete(head)) own.add(head);
    if (own.size) this.off[layer] = [...own].sort((a, b) => a - b); else delete this.off[layer];
    this.draw();
    this.switched?.();
  }

  key(event) {
    const [layer, head] = event.currentTarget.dataset.at.split(",").map((x) => (x === "null" ? null : Number(x)));
    const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (moves) {
      const l = Math.min(Math.max((layer ?? -1) + moves[0], -1), this.layers - 1), e = Math.min(Math.max((head ?? -1) + moves[1], -1), this.heads - 1);
      const to = l < 0 ? "null,null" : `${l},${e < 0 ? "null" : e}`;
      this.grid.querySelector(`[data-at="${to}"]`)?.focus();
    } else if ((event.key === "x" || event.key === "X") && this.off && head !== null) this.toggle(layer, head);
    else return;
    event.preventDefault();
  }
}
