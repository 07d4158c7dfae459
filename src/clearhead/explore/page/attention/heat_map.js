/**
 * A heat map on a canvas, of any size: cells are requested when they become visible.
 *
 * source: { rows, keys: names, part(row, rows, key, keys) -> { weights: rows of numbers, most } (a
 * promise, or at once) }
 */

import { colour } from "../colours.js";
import { button, legendBar, saver } from "../controls.js";
import { ARROWS, h, themed } from "../dom.js";
import { clamp, visible } from "../numbers.js";
import { drawMap, layoutOf, NAMED } from "./map_canvas.js";
import { mapFigure } from "./map_figure.js";

const ZOOMABLE = 24; // more tokens per side than these have buttons to zoom
const CLOSEST = 8; // tokens per side that can be zoomed to
const LAYERS = 8; // loaded parts that are kept besides the overview

export class HeatMap {
  // axes: what rows and columns are; fixed: the largest value of a colour scale that all maps
  // share; what: the unit of the numbers; scaled: called with true if the user chooses this map's
  // own largest value as the end of its colours
  constructor({
    title = "",
    signed = false,
    read = null,
    pick = null,
    tall = 420,
    axes = ["", ""],
    fixed = null,
    what = "",
    scaled = null,
  } = {}) {
    Object.assign(this, { title, signed, read, pick, tall, axes, fixed, what, scaled, own: false });
    Object.assign(this, { cursor: null, emphasis: null, layers: [] });
    this.canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": title, class: "map" });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    const zoom = (text, name, key, go) =>
      button(text, go, { title: `${name} (${key})`, "aria-label": name });
    this.zooms = h(
      "span",
      { class: "zooms", role: "group", "aria-label": "Zoom" },
      zoom("+", "Nearer", "+", () => this.zoom(0.5)),
      zoom("−", "Further", "-", () => this.zoom(2)),
      zoom("all", "All of it", "0", () => this.whole()),
    );
    this.legend = scaled
      ? button("", () => this.rescale(!this.own, true), { class: "legend" })
      : h("span", { class: "legend" });
    this.caption = h("b", {}, title);
    const save = saver(() => this.svg());
    this.root = h(
      "figure",
      { class: "mapbox" },
      h("figcaption", {}, this.caption, this.legend, this.zooms, save),
      this.canvas,
      this.note,
    );
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.root);
    themed(this, "draw");
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerleave", () => {
      if (!this.drag && document.activeElement !== canvas) this.point(null);
    });
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointerup", (event) => this.drop(event));
    canvas.addEventListener("wheel", (event) => this.rolled(event), { passive: false });
    canvas.addEventListener("dblclick", (event) => this.zoom(0.5, this.place(event)));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => {
      if (!this.cursor && this.source) this.point(this.begin());
    });
  }

  // Colours up to this map's own largest value, or up to the value that all maps share.
  rescale(own, told = false) {
    this.own = own;
    if (this.top !== undefined) this.most = this.limit();
    this.draw();
    if (told) this.scaled?.(own);
  }

  limit() {
    return (this.own ? null : this.fixed) ?? (this.top || 1);
  }

  // Where the keyboard cursor starts: at the emphasised row, and for self-attention at the key of
  // the same token.
  begin() {
    const { rows, keys } = this.source;
    const row = this.emphasis ?? Math.floor(this.window[0]);
    const self = rows.length === keys.length && rows[row] === keys[row];
    const diagonal = this.emphasis !== null && self;
    return [row, diagonal ? row : Math.floor(this.window[2])];
  }

  call(title, axes = this.axes) {
    this.axes = axes;
    this.title = this.caption.textContent = title;
    const named = axes.some(Boolean) ? `Rows: ${axes[0]}; columns: ${axes[1]}. ` : "";
    const label = `${title}. ${named}Arrow keys move through the cells.`;
    this.canvas.setAttribute("aria-label", label);
  }

  // Remove the map.
  clear() {
    clearTimeout(this.timer); // a part that was about to be loaded
    this.source = null;
    this.layers = [];
    this.cursor = this.emphasis = null;
    this.note.textContent = " ";
    this.canvas.width = this.canvas.height = 0;
    this.root.hidden = true;
  }

  // Show a source; `keep` keeps the visible window if the new source has the same size.
  show(source, keep = false) {
    const { rows, keys } = source;
    const before = this.source;
    const same = keep && before?.rows.length === rows.length && before.keys.length === keys.length;
    this.source = source;
    this.layers = [];
    this.root.hidden = false;
    if (!same) {
      this.window = [0, rows.length, 0, keys.length];
      this.cursor = null;
    }
    this.zooms.hidden = Math.max(rows.length, keys.length) <= ZOOMABLE;
    this.fetch(true);
    if (!same) this.draw();
  }

  // Load the visible part, or with `overview` all of the map in as many cells as the source gives.
  async fetch(overview) {
    const source = this.source;
    const ask = (this.asked = {});
    const part = overview ? [0, source.rows.length, 0, source.keys.length] : this.cover();
    const known = this.layers.find((layer) => layer.part.every((x, i) => x === part[i]));
    if (!known) {
      const [row, rowsEnd, key, keysEnd] = part;
      this.root.classList.add("busy");
      try {
        const found = await source.part(row, rowsEnd - row, key, keysEnd - key);
        if (this.source !== source) return;
        this.layers.push({ part, weights: found.weights, image: null });
        if (overview) {
          this.top = found.most ?? largest(found.weights);
          this.most = this.limit();
        }
      } catch (problem) {
        if (problem.name === "AbortError") return;
        dispatchEvent(new CustomEvent("problem", { detail: problem }));
        return;
      } finally {
        if (this.asked === ask) this.root.classList.remove("busy");
      }
    }
    this.layers.splice(1, Math.max(0, this.layers.length - LAYERS));
    if (this.cursor) this.tell(this.cursor);
    this.draw();
    if (overview && !this.exact()) this.fetch(false);
  }

  // The visible window, widened to a coarse grid so that neighbouring windows request the same
  // part.
  cover() {
    const grid = (low, high, most) => {
      const size = Math.max(64, 2 ** Math.floor(Math.log2(Math.max(1, (high - low) / 2))));
      return [
        Math.max(0, Math.floor(low / size) * size),
        Math.min(most, Math.ceil(high / size) * size),
      ];
    };
    const [r0, r1, k0, k1] = this.window;
    return [...grid(r0, r1, this.source.rows.length), ...grid(k0, k1, this.source.keys.length)];
  }

  // Whether the loaded cells show every token of the window separately.
  exact() {
    const best = this.best();
    if (!best) return false;
    const { part, weights } = best;
    return weights.length === part[1] - part[0] && weights[0].length === part[3] - part[2];
  }

  // The finest loaded part that holds all of the window.
  best() {
    const [r0, r1, k0, k1] = this.window;
    const near = 1e-6; // of a token: rounding errors of zooming
    const covers = ({ part: [row, rowsEnd, key, keysEnd] }) => {
      const rows = row <= r0 + near && rowsEnd >= r1 - near;
      return rows && key <= k0 + near && keysEnd >= k1 - near;
    };
    const tokensPerCell = ({ part, weights }) => (part[1] - part[0]) / weights.length;
    const found = this.layers.filter(covers);
    return found.sort((a, b) => tokensPerCell(a) - tokensPerCell(b))[0] ?? null;
  }

  layout() {
    return layoutOf(this);
  }

  draw() {
    if (!this.source || !this.root.isConnected) return;
    this.box = this.layout();
    drawMap(this);
    this.tellScale();
  }

  // Weights over long texts are small: their square roots are drawn, and the legend shows a root
  // sign.
  soft() {
    return !this.signed && Math.max(this.source.rows.length, this.source.keys.length) > 128;
  }

  tellScale() {
    const [low, high] = this.ends();
    this.legend.replaceChildren(
      h("span", { class: "unseen" }, "Colours from "),
      low,
      legendBar((t) => colour(this.signed ? 2 * t - 1 : t)),
      h("span", { class: "unseen" }, " to "),
      high + (this.soft() ? " √" : ""),
    );
    const said = `Colours from ${low} to ${high}${this.what ? `, ${this.what}` : ""}`;
    const end = this.own
      ? "this map's own largest value. Click for one scale for all maps."
      : "one scale for all maps. Click for this map's own.";
    this.legend.title = this.scaled ? `${said}: ${end}` : said;
  }

  // The values at the two ends of the colours.
  ends() {
    let most = "";
    if (this.most !== undefined) most = this.most === 1 ? "1" : this.most.toPrecision(2);
    return [this.signed ? `−${most}` : "0", most];
  }

  place(event) {
    const box = this.box;
    const at = this.canvas.getBoundingClientRect();
    const [r0, r1, k0, k1] = this.window;
    const x = (event.clientX - at.left - box.left) / box.width;
    const y = (event.clientY - at.top - box.top) / box.height;
    if (x < 0 || x >= 1 || y < -0.0001 || y >= 1) return null;
    return [r0 + y * (r1 - r0), k0 + x * (k1 - k0)];
  }

  moved(event) {
    if (!this.source || !this.box) return;
    if (this.drag) {
      this.pull(event);
      return;
    }
    const at = this.place(event);
    this.point(at && at.map(Math.floor));
  }

  // Move the window with the pointer, once it is clear that this is no click.
  pull({ clientX, clientY }) {
    const { drag, box } = this;
    const [r0, r1, k0, k1] = drag.window;
    const x = clientX - drag.x;
    const y = clientY - drag.y;
    if (Math.abs(x) + Math.abs(y) > 4) drag.far = true;
    if (!drag.far || !this.zoomed()) return;
    const dy = (y / box.height) * (r1 - r0);
    const dx = (x / box.width) * (k1 - k0);
    this.move(r0 - dy, r1 - dy, k0 - dx, k1 - dx);
  }

  grab(event) {
    if (!this.box || !this.place(event)) return;
    this.drag = { x: event.clientX, y: event.clientY, window: [...this.window] };
    this.canvas.setPointerCapture(event.pointerId);
  }

  drop(event) {
    const drag = this.drag;
    this.drag = null;
    const at = drag && !drag.far && this.place(event);
    if (at && this.pick) this.pick(...at.map(Math.floor));
  }

  rolled(event) {
    if (!event.ctrlKey) return; // the wheel scrolls the page
    const at = this.source && this.place(event);
    if (!at) return;
    event.preventDefault();
    this.zoom(Math.exp(Math.sign(event.deltaY) * 0.25), at);
  }

  key(event) {
    if (!this.source) return;
    const acts = {
      "+": () => this.zoom(0.5, this.cursor),
      "=": () => this.zoom(0.5, this.cursor),
      "-": () => this.zoom(2, this.cursor),
      0: () => this.whole(),
      Enter: this.cursor && this.pick && (() => this.pick(...this.cursor)),
    };
    const step = ARROWS[event.key];
    const act = step ? () => this.step(step, event.shiftKey ? 10 : 1) : acts[event.key];
    if (!act) return;
    act();
    event.preventDefault();
  }

  step([down, right], by) {
    const { rows, keys } = this.source;
    const [row, key] = this.cursor ?? [Math.floor(this.window[0]), Math.floor(this.window[2])];
    const next = [
      clamp(row + by * down, 0, rows.length - 1),
      clamp(key + by * right, 0, keys.length - 1),
    ];
    this.follow(next);
    this.point(next);
  }

  // Move the window until it holds a cell.
  follow([row, key]) {
    const [r0, r1, k0, k1] = this.window;
    const outside = (at, low, high) => {
      if (at < low) return at - low;
      return at >= high ? at + 1 - high : 0;
    };
    const dy = outside(row, r0, r1);
    const dx = outside(key, k0, k1);
    if (dy || dx) this.move(r0 + dy, r1 + dy, k0 + dx, k1 + dx);
  }

  point(at) {
    if (String(at) === String(this.cursor)) return;
    this.cursor = at;
    this.tell(at);
    this.read?.(at);
    this.draw();
  }

  // Emphasise a row that another figure points at.
  emphasise(row) {
    if (this.emphasis === row) return;
    this.emphasis = row;
    this.draw();
  }

  tell(at) {
    if (!at) {
      this.note.textContent = " ";
      return;
    }
    const [row, key] = at;
    const { rows, keys } = this.source;
    const name = (token) => visible(token).trim() || "␣";
    const value = this.value(row, key);
    const parts = [`${name(rows[row])} → ${name(keys[key])}`];
    if (rows.length > NAMED) parts.push(` (${row.toLocaleString()} → ${key.toLocaleString()})`);
    if (value !== null && !Number.isNaN(value)) parts.push(`   ${value.toFixed(4)}`);
    this.note.textContent = parts.join("");
  }

  // The number of a cell, if a loaded part has it separately.
  value(row, key) {
    for (const { part, weights } of [...this.layers].reverse()) {
      const [r0, r1, k0, k1] = part;
      const separate = weights.length === r1 - r0 && weights[0].length === k1 - k0;
      const within = row >= r0 && row < r1 && key >= k0 && key < k1;
      if (separate && within) return weights[row - r0][key - k0];
    }
    return null;
  }

  zoomed() {
    const [r0, r1, k0, k1] = this.window;
    return r1 - r0 < this.source.rows.length || k1 - k0 < this.source.keys.length;
  }

  // Show `by` times as many tokens per side, around a place.
  zoom(by, at = null) {
    if (!this.source) return;
    const [r0, r1, k0, k1] = this.window;
    const [row, key] = at ?? [(r0 + r1) / 2, (k0 + k1) / 2];
    const span = (low, high, middle, most) => {
      const size = Math.min(Math.max((high - low) * by, Math.min(CLOSEST, most)), most);
      const share = (middle - low) / (high - low);
      return [middle - share * size, middle + (1 - share) * size];
    };
    const { rows, keys } = this.source;
    this.move(...span(r0, r1, row, rows.length), ...span(k0, k1, key, keys.length));
  }

  whole() {
    this.move(0, this.source.rows.length, 0, this.source.keys.length);
  }

  move(r0, r1, k0, k1) {
    const fit = (low, high, most) => {
      const size = Math.min(high - low, most);
      const from = clamp(low, 0, most - size);
      return [from, from + size];
    };
    const { rows, keys } = this.source;
    this.window = [...fit(r0, r1, rows.length), ...fit(k0, k1, keys.length)];
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (!this.exact()) this.fetch(false);
    }, 80);
  }

  svg() {
    return this.source && this.layers.length ? mapFigure(this) : null;
  }
}

/** The largest absolute value of rows of numbers. */
export function largest(weights) {
  let most = 0;
  for (const row of weights) for (const x of row) if (Math.abs(x) > most) most = Math.abs(x);
  return most;
}

/** A source with all of its numbers. */
export const whole = (rows, keys, weights, most) => ({
  rows,
  keys,
  part: () => ({ weights, most }),
});
