/**
 * A grid of all layers and heads, to choose one: each cell shows its map in small, or is coloured
 * by a number.
 */

import { colour, css, dark, ink, tint } from "./colours.js";
import { choose, h, number, s, saver, themed } from "./dom.js";
import { scaleBar } from "./figure.js";

/** id, name, unit, what it means */
export const COLOURINGS = [
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
const VECTORS = [
  "effect",
  "effect of each head",
  "of their length",
  "How much the output vectors change when this head is switched off.",
]; // of an encoder, which has no probability of a text
const CELL = 30;
const SMALL = 46; // pixels of a cell, and of one with a map

/** What a map of these heads shows: "layer 1, head 2", "mean of 15 heads". */
export function headTitle(layers, heads, layer, head) {
  if (layers * heads === 1) return "the only head";
  if (layer === null) return `mean of ${layers * heads} heads`;
  if (head === null) {
    return heads === 1 ? `layer ${layer}` : `layer ${layer}, mean of ${heads} heads`;
  }
  return `layer ${layer}, head ${head}`;
}

export class HeadGrid {
  // off: silenced heads by layer, or null where heads cannot be silenced; recolour: called with the
  // chosen colouring
  // means: entries of COLOURINGS that have another meaning here
  constructor({
    pick,
    off = null,
    colouring = "map",
    recolour = null,
    colourings = COLOURINGS.map(([id]) => id),
    means = [],
  }) {
    Object.assign(this, {
      pick,
      off,
      colouring,
      recolour,
      colourings,
      means,
      layers: 0,
      heads: 0,
      told: [],
      at: [null, null],
      maps: null,
      own: false,
      away: false,
      painted: new WeakMap(),
    });
    this.grid = h("div", { class: "heads", role: "grid", "aria-label": "Layers and heads" });
    this.legend = h("p", { class: "legend" });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.field = h("div", { class: "row" });
    this.root = h("div", { class: "picker" }, this.field, this.grid, this.legend, this.note);
    this.offer(colourings);
    themed(this, "draw");
    new ResizeObserver(() => {
      if (this.wide !== this.root.clientWidth) {
        this.wide = this.root.clientWidth;
        this.draw();
      }
    }).observe(this.root);
  }

  // Let the user choose one of these colourings.
  offer(colourings) {
    this.colourings = colourings;
    if (!colourings.includes(this.colouring)) this.colouring = colourings[0];
    const options = COLOURINGS.filter(([id]) => colourings.includes(id)).map(([id]) =>
      this.entry(id).slice(0, 2)
    );
    if (String(options) !== this.offered) {
      this.offered = String(options);
      this.field.replaceChildren(
        choose("heads coloured by", options, this.colouring, (value) => {
          this.colouring = value;
          this.draw();
          this.recolour?.(value);
        }),
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
    const one = (x, count) => (Number.isInteger(x) && x >= 0 && x < count ? x : null);
    const row = one(layer, layers);
    Object.assign(this, { layers, heads, at: [row, row === null ? null : one(head, heads)] });
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
    return this.pooled
      ? (this.maps.most ??= this.maps.data.reduce((a, x) => Math.max(a, x), 0) || 1)
      : 1;
  }

  // What the cells of small maps are, if not the weights themselves.
  get pooling() {
    return this.pooled
      ? `Each cell is the mean of up to ${this.pooled.join(" x ")} weights${
        this.own ? "" : `; the colours end at ${number(this.most)}`
      }.`
      : "";
  }

  entry(id) {
    return [...this.means, ...COLOURINGS].find((one) => one[0] === id);
  }

  // The entry of COLOURINGS in force.
  get shown() {
    return this.colouring === "effect" && this.told.some((one) => one?.measure === "vector")
      ? VECTORS
      : this.entry(this.colouring);
  }
  get signed() {
    return this.colouring === "effect" && this.shown !== VECTORS;
  }

  value(layer, head) {
    return this.told[layer]?.[this.colouring]?.[head] ?? null;
  }

  // The ends of the colours.
  range() {
    const all = this.told
      .flatMap((one) => one?.[this.colouring] ?? [])
      .filter((x) => x !== null && Number.isFinite(x));
    if (!all.length) return null;
    if (this.signed) {
      const most = Math.max(...all.map(Math.abs)) || 1;
      return [-most, most];
    }
    return [Math.min(...all), Math.max(...all)];
  }

  shade(value) {
    const [low, high] = this.range();
    return this.signed
      ? colour(value / high)
      : colour(high > low ? 0.08 + 0.86 * ((value - low) / (high - low)) : 0.3);
  }

  title(layer, head) {
    const [id, name, unit] = this.shown;
    const value = this.value(layer, head);
    const gone = this.off?.[layer]?.includes(head);
    return `layer ${layer}, head ${head}${
      value === null ? "" : `: ${id === "effect" ? id : name} ${number(value)} ${unit}`
    }${gone ? ", switched off" : ""}`;
  }

  draw() {
    const focused = this.grid.contains(document.activeElement)
      ? document.activeElement.dataset.at
      : null;
    const small = this.colouring === "map";
    const cell = (layer, head, text, title) => {
      const on = this.at[0] === layer && this.at[1] === head;
      const gone = layer !== null && head !== null && this.off?.[layer]?.includes(head);
      const value = head === null ? null : this.value(layer, head);
      const node = h(
        "button",
        {
          type: "button",
          role: "gridcell",
          class: `${on ? "on" : ""}${gone ? " off" : ""}${value === null ? " plain" : ""}`,
          title,
          "aria-label": head === null ? `${text}: ${title}` : title,
          "aria-selected": on,
          "data-at": `${layer},${head}`,
          tabindex: on ? 0 : -1,
          onclick: (event) => this.chosen(layer, head, event),
          onkeydown: (event) => this.key(event),
          onpointerenter: () => {
            this.note.textContent = title;
          },
          onpointerleave: () => {
            this.note.textContent = " ";
          },
          onfocus: () => {
            this.note.textContent = title;
          },
        },
        text,
      );
      if (value !== null && !gone && !small) {
        const fill = this.shade(value);
        node.style.setProperty("background-color", css(fill));
        node.style.setProperty("color", ink(fill));
      }
      if (small && head !== null && !gone && this.maps) node.append(this.thumbnail(layer, head));
      return node;
    };
    const one = this.layers * this.heads === 1;
    const rows = [
      h(
        "div",
        { role: "row" },
        cell(null, null, "all", `the mean of all ${this.layers * this.heads} heads`),
        this.heads > 1
          ? Array.from(
            { length: this.heads },
            (_, i) => h("span", { class: "name", role: "columnheader" }, i),
          )
          : null,
      ),
    ];
    for (let layer = 0; layer < this.layers; layer++) {
      rows.push(
        h(
          "div",
          { role: "row" },
          cell(layer, null, `L${layer}`, `layer ${layer}, the mean of its ${this.heads} heads`),
          Array.from({ length: this.heads }, (_, head) =>
            cell(
              layer,
              head,
              this.off?.[layer]?.includes(head) ? "×" : "",
              this.title(layer, head),
            )),
        ),
      );
    }
    this.root.hidden = one || this.away; // there is nothing to choose
    this.grid.classList.toggle("small", small);
    const wanted = 48 + this.heads * (2 + (small ? SMALL : CELL));
    const room = this.root.clientWidth; // many heads get smaller cells
    this.root.style.setProperty("flex-basis", `${Math.max(200, wanted)}px`);
    this.grid.style.setProperty(
      "--cell",
      `${
        Math.max(
          20,
          Math.min(small ? SMALL : CELL, room ? Math.floor((room - 48) / this.heads) - 2 : SMALL),
        )
      }px`,
    );
    this.grid.replaceChildren(...rows);
    if (!this.grid.querySelector('[tabindex="0"]')) {
      this.grid.querySelector("button")?.setAttribute("tabindex", "0");
    }
    if (focused) this.grid.querySelector(`[data-at="${focused}"]`)?.focus();
    this.tellScale();
  }

  tellScale() {
    const [, , unit, meaning] = this.shown;
    const range = this.colouring === "map" ? null : this.range();
    if (!range) {
      this.legend.replaceChildren(
        [meaning, this.colouring === "map" ? this.pooling : ""].filter(Boolean).join(" "),
      );
      return;
    }
    const bar = h("span", { class: "bar" });
    bar.style.setProperty(
      "background",
      `linear-gradient(90deg, ${
        Array.from({ length: 9 }, (_, i) =>
          css(this.shade(range[0] + (i / 8) * (range[1] - range[0])))).join(",")
      })`,
    );
    this.legend.replaceChildren(
      h("span", { class: "ends" }, number(range[0]), bar, `${number(range[1])} ${unit}`),
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
      shape: [, heads, n, m],
    } = this.maps;
    const from = (layer * heads + head) * n * m;
    const own = data.subarray(from, from + n * m);
    const canvas = h("canvas", { width: m, height: n, "aria-hidden": "true" });
    const c = canvas.getContext("2d");
    const image = c.createImageData(m, n);
    const most = this.own ? own.reduce((a, x) => Math.max(a, x), 0) || 1 : this.most;
    own.forEach((x, i) => {
      const [r, g, b] = colour(Math.sqrt(Math.min(x / most, 1)));
      image.data.set([r, g, b, 255], 4 * i);
    });
    c.putImageData(image, 0, 0);
    return canvas;
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
    const [layer, head] = event.currentTarget.dataset.at
      .split(",")
      .map((x) => (x === "null" ? null : Number(x)));
    const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[
      event.key
    ];
    if (moves) {
      const l = Math.min(Math.max((layer ?? -1) + moves[0], -1), this.layers - 1);
      const e = Math.min(Math.max((head ?? -1) + moves[1], -1), this.heads - 1);
      const to = l < 0 ? "null,null" : `${l},${e < 0 ? "null" : e}`;
      this.grid.querySelector(`[data-at="${to}"]`)?.focus();
    } else if ((event.key === "x" || event.key === "X") && this.off && head !== null) {
      this.toggle(layer, head);
    } else return;
    event.preventDefault();
  }

  svg() {
    if (!this.layers || this.layers * this.heads === 1) return null;
    const small = this.colouring === "map";
    const size = small ? SMALL : CELL;
    const left = 60;
    const top = 50;
    const [, name, unit] = this.shown;
    const range = small ? null : this.range();
    const root = s("svg", {
      width: Math.max(left + this.heads * size + 8, 440),
      height: top + this.layers * size + 40,
      "font-size": 11,
      fill: tint("soft"),
    });
    root.append(
      s(
        "text",
        { y: 14, "font-size": 14, "font-weight": 600, fill: tint("ink") },
        small ? "Attention maps of every head" : `Heads by ${name}`,
      ),
      s("text", { x: left, y: 30 }, "head"),
      s("text", { x: 0, y: top + 12 }, "layer"),
    );
    for (let head = 0; head < this.heads; head++) {
      root.append(
        s("text", { x: left + (head + 0.5) * size, y: top - 5, "text-anchor": "middle" }, head),
      );
    }
    for (let layer = 0; layer < this.layers; layer++) {
      root.append(
        s("text", { x: left - 8, y: top + (layer + 0.5) * size + 4, "text-anchor": "end" }, layer),
      );
      for (let head = 0; head < this.heads; head++) {
        const place = {
          x: left + head * size,
          y: top + layer * size,
          width: size - 2,
          height: size - 2,
        };
        const value = this.value(layer, head);
        if (this.off?.[layer]?.includes(head)) {
          root.append(
            s("rect", { ...place, fill: "none", stroke: tint("mark") }),
            s(
              "text",
              {
                x: place.x + size / 2 - 1,
                y: place.y + size / 2 + 3,
                "text-anchor": "middle",
                fill: tint("mark"),
              },
              "×",
            ),
          );
        } else if (small && this.maps) {
          root.append(
            s("rect", { ...place, fill: "none", stroke: tint("hair") }),
            s("image", {
              ...place,
              href: this.thumbnail(layer, head).toDataURL(),
              preserveAspectRatio: "none",
              "image-rendering": "pixelated",
            }),
          );
        } else if (value !== null) {
          root.append(
            s(
              "rect",
              { ...place, rx: 4, fill: css(this.shade(value)) },
              s("title", {}, this.title(layer, head)),
            ),
          );
        }
        if (this.at[0] === layer && this.at[1] === head) {
          root.append(
            s("rect", { ...place, fill: "none", stroke: tint("accent"), "stroke-width": 2.5 }),
          );
        }
      }
    }
    if (small && this.maps) {
      root.append(
        scaleBar({
          x: left,
          y: top + this.layers * size + 12,
          low: "0",
          high: this.own ? "own largest" : number(this.most),
          label: this.pooled
            ? `attention weight, mean of up to ${this.pooled.join(" x ")}`
            : "attention weight",
          root: true,
        }),
      );
    }
    if (range) {
      root.append(
        scaleBar({
          x: left,
          y: top + this.layers * size + 12,
          low: number(range[0]),
          high: number(range[1]),
          label: unit,
          signed: this.signed,
        }),
      );
    }
    return root;
  }
}
