/**
 * A grid of all layers and heads, to choose one: each cell shows its map in small, or is coloured
 * by a number.
 */

import { colour, css, dark, ink } from "../colours.js";
import { choose, legendBar, saver } from "../controls.js";
import { ARROWS, h, keepFocus, paintPixels, themed } from "../dom.js";
import { clamp, number, spread } from "../numbers.js";
import { headFigure } from "./head_figure.js";

/** id, name, unit, what it means */
const COLOURINGS = [
  [
    "map",
    "small maps",
    "attention weight",
    "The attention map of every head (colours: square root).",
  ],
  [
    "entropy",
    "entropy",
    "nats",
    "Low: a head attends to few keys. High: to many. The mean over all queries.",
  ],
  ["distance", "distance", "tokens", "The mean distance from a query to its keys."],
  ["maximum", "largest weight", "weight", "The mean of each query's largest weight."],
  [
    "sink",
    "weight on the first token",
    "weight",
    "Heads that attend to nothing in particular put their weight on the first token.",
  ],
  [
    "effect",
    "effect of each head",
    "nats per token",
    "The change in log-probability of the text when this head is switched off. Negative: the text becomes less likely.",
  ],
];
// of an encoder, which has no probability of a text
const VECTORS = [
  "effect",
  "effect of each head",
  "of their length",
  "How much the output vectors change when this head is switched off.",
];
export const CELL = 30; // pixels of a cell
export const SMALL = 46; // pixels of a cell with a map
const NARROWEST = 20; // pixels of a cell where many heads share little room

/** What a map of these heads shows: "layer 1, head 2", "mean of 15 heads". */
export function headTitle(layers, heads, layer, head) {
  if (layers * heads === 1) return "the only head";
  if (layer === null) return `mean of ${layers * heads} heads`;
  if (head === null) {
    return heads === 1 ? `layer ${layer}` : `layer ${layer}, mean of ${heads} heads`;
  }
  return `layer ${layer}, head ${head}`;
}

/** The chosen head as a part of a file's name. */
export function headName({ layer, head }) {
  if (layer === null) return "all-heads";
  return head === null ? `layer${layer}` : `layer${layer}-head${head}`;
}

export class HeadGrid {
  // off: silenced heads by layer, or null where heads cannot be silenced; recolour: called with the
  // chosen colouring; means: entries of COLOURINGS that have another meaning here
  constructor({
    pick,
    off = null,
    colouring = "map",
    recolour = null,
    colourings = COLOURINGS.map(([id]) => id),
    means = [],
  }) {
    Object.assign(this, { pick, off, colouring, recolour, colourings, means });
    Object.assign(this, { layers: 0, heads: 0, at: [null, null], told: [], maps: null });
    this.own = false; // whether each small map has its own scale
    this.away = false; // hidden until it is shown again
    this.painted = new WeakMap(); // small maps as canvases: drawing them all takes long
    this.grid = h("div", { class: "heads", role: "grid", "aria-label": "Layers and heads" });
    this.legend = h("p", { class: "legend" });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.field = h("div", { class: "row" });
    this.root = h("div", { class: "picker" }, this.field, this.grid, this.legend, this.note);
    this.offer(colourings);
    themed(this, "draw");
    const resized = () => {
      if (this.wide === this.root.clientWidth) return;
      this.wide = this.root.clientWidth;
      this.draw();
    };
    new ResizeObserver(resized).observe(this.root);
  }

  // Let the user choose one of these colourings.
  offer(colourings) {
    this.colourings = colourings;
    if (!colourings.includes(this.colouring)) this.colouring = colourings[0];
    const offered = COLOURINGS.filter(([id]) => colourings.includes(id));
    const options = offered.map(([id]) => this.entry(id).slice(0, 2));
    if (String(options) !== this.offered) {
      this.offered = String(options);
      const change = (value) => {
        this.colouring = value;
        this.draw();
        this.recolour?.(value);
      };
      this.field.replaceChildren(
        choose("heads coloured by", options, this.colouring, change),
        saver(() => this.svg()),
      );
    }
    this.field.querySelector("select").value = this.colouring;
  }

  // Hide it until it is shown again.
  hide() {
    this.away = this.root.hidden = true;
  }

  show(layers, heads, [layer, head] = [null, null]) {
    this.away = false;
    if (layers !== this.layers || heads !== this.heads) this.forget();
    const known = (x, count) => (Number.isInteger(x) && x >= 0 && x < count ? x : null);
    const row = known(layer, layers);
    const column = row === null ? null : known(head, heads);
    Object.assign(this, { layers, heads, at: [row, column] });
    this.draw();
  }

  // Add numbers of one layer: { layer, entropy: [...], ... }.
  tell(line) {
    this.told[line.layer] = { ...this.told[line.layer], ...line };
    this.draw();
  }

  // Add the maps of all heads: { data, shape: [layers, heads, rows, columns], tokens: numbers of
  // queries and keys, which may be more }.
  tellMaps(maps) {
    this.maps = maps;
    this.draw();
  }

  forget() {
    this.told = [];
    this.maps = null;
    this.note.textContent = " ";
    this.draw();
  }

  // How many queries and keys a cell of a small map holds at most; null if each has its own cell.
  get pooled() {
    const { tokens, shape } = this.maps ?? {};
    const many = tokens?.map((n, i) => Math.ceil(n / shape[i + 2]));
    return many?.some((n) => n > 1) ? many : null;
  }

  // The end of the colours of all small maps: 1, or their largest value where means over many
  // tokens are small.
  get most() {
    if (!this.pooled) return 1;
    this.maps.most ??= spread(this.maps.data)[1] || 1;
    return this.maps.most;
  }

  // What the cells of small maps are, if not the weights themselves.
  get pooling() {
    if (!this.pooled) return "";
    const end = this.own ? "" : `; the colours end at ${number(this.most)}`;
    return `Each cell is the mean of up to ${this.pooled.join(" x ")} weights${end}.`;
  }

  entry(id) {
    return [...this.means, ...COLOURINGS].find((one) => one[0] === id);
  }

  // The entry of COLOURINGS in force.
  get shown() {
    const vectors = this.told.some((line) => line?.measure === "vector");
    return this.colouring === "effect" && vectors ? VECTORS : this.entry(this.colouring);
  }

  get signed() {
    return this.colouring === "effect" && this.shown !== VECTORS;
  }

  // Whether there is nothing to choose.
  get single() {
    return this.layers * this.heads === 1;
  }

  silenced(layer, head) {
    return Boolean(this.off?.[layer]?.includes(head));
  }

  value(layer, head) {
    return this.told[layer]?.[this.colouring]?.[head] ?? null;
  }

  // The ends of the colours.
  range() {
    const all = this.told.flatMap((line) => line?.[this.colouring] ?? []);
    const numbers = all.filter((x) => x !== null && Number.isFinite(x));
    if (!numbers.length) return null;
    if (!this.signed) return spread(numbers);
    const most = Math.max(...numbers.map(Math.abs)) || 1;
    return [-most, most];
  }

  shade(value) {
    const [low, high] = this.range();
    if (this.signed) return colour(value / high);
    return colour(high > low ? 0.08 + 0.86 * ((value - low) / (high - low)) : 0.3);
  }

  title(layer, head) {
    const [id, name, unit] = this.shown;
    const value = this.value(layer, head);
    const parts = [`layer ${layer}, head ${head}`];
    if (value !== null) parts.push(`: ${id === "effect" ? id : name} ${number(value)} ${unit}`);
    if (this.silenced(layer, head)) parts.push(", switched off");
    return parts.join("");
  }

  draw() {
    const small = this.colouring === "map";
    this.root.hidden = this.single || this.away;
    this.grid.classList.toggle("small", small);
    this.fit(small ? SMALL : CELL);
    const rows = [this.headings()];
    for (let layer = 0; layer < this.layers; layer++) rows.push(this.row(layer));
    keepFocus(this.grid, "at", () => {
      this.grid.replaceChildren(...rows);
      if (this.grid.querySelector('[tabindex="0"]')) return;
      this.grid.querySelector("button")?.setAttribute("tabindex", "0");
    });
    this.tellScale();
  }

  // Many heads get smaller cells.
  fit(size) {
    const room = this.root.clientWidth;
    const names = 48; // pixels of the column with the numbers of the layers
    const cell = room ? Math.floor((room - names) / this.heads) - 2 : SMALL;
    const wanted = names + this.heads * (2 + size);
    this.root.style.setProperty("flex-basis", `${Math.max(200, wanted)}px`);
    this.grid.style.setProperty("--cell", `${Math.max(NARROWEST, Math.min(size, cell))}px`);
  }

  headings() {
    const all = this.cell(null, null, "all", `the mean of all ${this.layers * this.heads} heads`);
    const name = (_, i) => h("span", { class: "name", role: "columnheader" }, i);
    const names = Array.from({ length: this.heads }, name);
    return h("div", { role: "row" }, all, this.heads > 1 ? names : null);
  }

  row(layer) {
    const all = `layer ${layer}, the mean of its ${this.heads} heads`;
    const cells = Array.from({ length: this.heads }, (_, head) => {
      const sign = this.silenced(layer, head) ? "×" : "";
      return this.cell(layer, head, sign, this.title(layer, head));
    });
    return h("div", { role: "row" }, this.cell(layer, null, `L${layer}`, all), cells);
  }

  cell(layer, head, text, title) {
    const chosen = this.at[0] === layer && this.at[1] === head;
    const off = this.silenced(layer, head);
    const value = head === null ? null : this.value(layer, head);
    const classes = [chosen && "on", off && "off", value === null && "plain"];
    const note = (said) => () => {
      this.note.textContent = said;
    };
    const node = h(
      "button",
      {
        type: "button",
        role: "gridcell",
        class: classes.filter(Boolean).join(" "),
        title,
        "aria-label": head === null ? `${text}: ${title}` : title,
        "aria-selected": chosen,
        "data-at": `${layer},${head}`,
        tabindex: chosen ? 0 : -1,
        onclick: (event) => this.chosen(layer, head, event),
        onkeydown: (event) => this.key(event),
        onpointerenter: note(title),
        onpointerleave: note(" "),
        onfocus: note(title),
      },
      text,
    );
    if (off) return node;
    if (this.colouring !== "map" && value !== null) {
      const fill = this.shade(value);
      node.style.setProperty("background-color", css(fill));
      node.style.setProperty("color", ink(fill));
    }
    if (this.colouring === "map" && head !== null && this.maps) {
      node.append(this.thumbnail(layer, head));
    }
    return node;
  }

  tellScale() {
    const [, , unit, meaning] = this.shown;
    if (this.colouring === "map") {
      this.legend.replaceChildren([meaning, this.pooling].filter(Boolean).join(" "));
      return;
    }
    const range = this.range();
    if (!range) {
      this.legend.replaceChildren(meaning);
      return;
    }
    const [low, high] = range;
    const bar = legendBar((t) => this.shade(low + t * (high - low)));
    this.legend.replaceChildren(
      h("span", { class: "ends" }, number(low), bar, `${number(high)} ${unit}`),
      meaning,
    );
  }

  // A canvas with the map of one head, up to its own largest weight or that of all heads; painted
  // once per theme.
  thumbnail(layer, head) {
    if (!this.painted.has(this.maps)) this.painted.set(this.maps, new Map());
    const known = this.painted.get(this.maps);
    const key = `${layer} ${head} ${this.own} ${dark()}`;
    if (!known.has(key)) known.set(key, this.paint(layer, head));
    return known.get(key);
  }

  paint(layer, head) {
    const {
      data,
      shape: [, heads, rows, columns],
    } = this.maps;
    const from = (layer * heads + head) * rows * columns;
    const weights = data.subarray(from, from + rows * columns);
    const most = this.own ? spread(weights)[1] || 1 : this.most;
    const canvas = h("canvas", { width: columns, height: rows, "aria-hidden": "true" });
    // square roots, as most weights are small
    return paintPixels(canvas, (i) => [...colour(Math.sqrt(Math.min(weights[i] / most, 1))), 255]);
  }

  chosen(layer, head, event) {
    if (event.shiftKey && this.off && head !== null) {
      this.toggle(layer, head);
      return;
    }
    this.at = [layer, head];
    this.draw();
    this.pick(layer, head);
  }

  toggle(layer, head) {
    const own = new Set(this.off[layer] ?? []);
    if (!own.delete(head)) own.add(head);
    if (own.size) this.off[layer] = [...own].sort((a, b) => a - b);
    else delete this.off[layer];
    this.draw();
    this.switched?.();
  }

  key(event) {
    const numbers = event.currentTarget.dataset.at.split(",");
    const [layer, head] = numbers.map((x) => (x === "null" ? null : Number(x)));
    const move = ARROWS[event.key];
    const silence = event.key.toLowerCase() === "x" && this.off && head !== null;
    if (!move && !silence) return;
    event.preventDefault();
    if (silence) {
      this.toggle(layer, head);
      return;
    }
    // the names of layers and "all" are at -1
    const row = clamp((layer ?? -1) + move[0], -1, this.layers - 1);
    const column = clamp((head ?? -1) + move[1], -1, this.heads - 1);
    const to = [row < 0 ? null : row, row < 0 || column < 0 ? null : column];
    this.grid.querySelector(`[data-at="${to.map(String)}"]`)?.focus();
  }

  svg() {
    return this.layers && !this.single ? headFigure(this) : null;
  }
}
