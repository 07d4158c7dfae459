/**
 * A heat map on a canvas, of any size: cells are requested when they become visible.
 *
 * source: { rows, keys: names, part(row, rows, key, keys) -> { weights: rows of numbers, most } (a
 * promise, or at once) }
 */

import { colour, css, tint } from "./colours.js";
import { h, saver, themed, visible } from "./dom.js";
import { labels, mapFigure, short } from "./map_figure.js";
import { fitted } from "./tokens.js";

const FONT = "12px system-ui, sans-serif";
const NAMED = 80; // largest number of tokens per side whose names are drawn

export class HeatMap {
  // axes: what rows and columns are; fixed: the largest value of a colour scale that all maps
  // share; what: the unit of the numbers
  // scaled: called with true if the user chooses this map's own largest value as the end of its
  // colours
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
    this.canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": title, class: "map" });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.zooms = h(
      "span",
      { class: "zooms", role: "group", "aria-label": "Zoom" },
      h(
        "button",
        {
          type: "button",
          title: "Nearer (+)",
          "aria-label": "Nearer",
          onclick: () => this.zoom(0.5),
        },
        "+",
      ),
      h(
        "button",
        {
          type: "button",
          title: "Further (-)",
          "aria-label": "Further",
          onclick: () => this.zoom(2),
        },
        "−",
      ),
      h(
        "button",
        {
          type: "button",
          title: "All of it (0)",
          "aria-label": "All of it",
          onclick: () => this.whole(),
        },
        "all",
      ),
    );
    this.legend = h(scaled ? "button" : "span", {
      class: "legend",
      type: scaled ? "button" : null,
      onclick: scaled ? () => this.rescale(!this.own, true) : null,
    });
    this.root = h(
      "figure",
      { class: "mapbox" },
      h(
        "figcaption",
        {},
        this.caption = h("b", {}, title),
        this.legend,
        this.zooms,
        saver(() => this.svg()),
      ),
      this.canvas,
      this.note,
    );
    this.cursor = null;
    this.emphasis = null;
    this.layers = [];
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    this.canvas.addEventListener("pointerleave", () => {
      if (!this.drag && document.activeElement !== this.canvas) this.point(null);
    });
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointerup", (event) => this.drop(event));
    this.canvas.addEventListener("wheel", (event) => this.rolled(event), { passive: false });
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.5, this.place(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => {
      if (!this.cursor && this.source) this.point(this.begin());
    });
    new ResizeObserver(() => this.draw()).observe(this.root);
    themed(this, "draw");
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
    const row = this.emphasis ?? Math.floor(this.window[0]);
    return [
      row,
      this.emphasis !== null &&
        this.source.rows.length === this.source.keys.length &&
        this.source.rows[row] === this.source.keys[row]
        ? row
        : Math.floor(this.window[2]),
    ];
  }

  call(title, axes = this.axes) {
    this.axes = axes;
    this.title = this.caption.textContent = title;
    this.canvas.setAttribute(
      "aria-label",
      `${title}. ${
        axes.filter(Boolean).length ? `Rows: ${axes[0]}; columns: ${axes[1]}.` : ""
      } Arrow keys move through the cells.`,
    );
  }

  // Remove the map.
  clear() {
    this.source = null;
    this.layers = [];
    this.cursor = this.emphasis = null;
    this.note.textContent = " ";
    this.canvas.width = this.canvas.height = 0;
    this.root.hidden = true;
  }

  // Show a source; `keep` keeps the visible window if the new source has the same size.
  show(source, keep = false) {
    const same = keep &&
      this.source &&
      this.source.rows.length === source.rows.length &&
      this.source.keys.length === source.keys.length;
    this.source = source;
    this.layers = [];
    this.root.hidden = false;
    if (!same) {
      this.window = [0, source.rows.length, 0, source.keys.length];
      this.cursor = null;
    }
    this.zooms.hidden = Math.max(source.rows.length, source.keys.length) <= 24;
    this.fetch(true);
    if (!same) this.draw();
  }

  async fetch(overview) {
    const source = this.source;
    const ask = (this.asked = {});
    const part = overview ? [0, source.rows.length, 0, source.keys.length] : this.cover();
    const known = this.layers.find((one) => one.part.every((x, i) => x === part[i]));
    if (!known) {
      this.root.classList.add("busy");
      try {
        const found = await source.part(part[0], part[1] - part[0], part[2], part[3] - part[2]);
        if (this.source !== source) return;
        this.layers.push({ part, weights: found.weights, image: null });
        if (overview) {
          this.top = found.most ?? largest(found.weights);
          this.most = this.limit();
        }
      } catch (problem) {
        if (problem.name !== "AbortError") {
          dispatchEvent(new CustomEvent("problem", { detail: problem }));
        }
        return;
      } finally {
        if (this.asked === ask) this.root.classList.remove("busy");
      }
    }
    this.layers.splice(1, Math.max(0, this.layers.length - 8));
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

  best() {
    const [r0, r1, k0, k1] = this.window;
    const inside = this.layers.filter(
      ({ part }) =>
        part[0] <= r0 + 1e-6 &&
        part[1] >= r1 - 1e-6 &&
        part[2] <= k0 + 1e-6 &&
        part[3] >= k1 - 1e-6,
    );
    const fine = ({ part, weights }) => (part[1] - part[0]) / weights.length;
    return inside.sort((a, b) => fine(a) - fine(b))[0] ?? null;
  }

  layout() {
    const [r0, r1, k0, k1] = this.window;
    const n = r1 - r0;
    const m = k1 - k0;
    const room = this.root.clientWidth || 600;
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const wide = (names, a, b) =>
      Math.max(
        0,
        ...names
          .slice(Math.floor(a), Math.ceil(b))
          .map((name) => context.measureText(short(name)).width),
      );
    const named = Math.max(n, m) <= NAMED;
    const titles = this.axes.map((one) => (one ? 18 : 0));
    const left = titles[0] +
      (named ? Math.min(wide(this.source.rows, r0, r1) + 10, room * 0.3) : 48);
    const top = titles[1] +
      (named ? Math.min(wide(this.source.keys, k0, k1) * 0.75 + 16, 110) : 22);
    const right = named ? Math.min(wide([...this.source.keys.slice(-1)], 0, 1) * 0.7, 60) : 16;
    const cell = Math.min((room - left - right) / m, this.tall / n, 60);
    const square = named || n === m;
    const width = square ? cell * m : Math.min(room - left - right, 60 * m);
    const height = square ? cell * n : this.tall;
    return {
      left,
      top,
      width: Math.max(width, 20),
      height: Math.min(height, this.tall * 1.4),
      named,
      room,
      n,
      m,
    };
  }

  draw() {
    if (!this.source || !this.root.isConnected) return;
    const box = (this.box = this.layout());
    const scale = devicePixelRatio || 1;
    const [r0, r1, k0, k1] = this.window;
    this.canvas.width = Math.round(box.room * scale);
    this.canvas.height = Math.round((box.top + box.height + 8) * scale);
    this.canvas.style.setProperty("width", `${box.room}px`);
    this.canvas.style.setProperty("height", `${box.top + box.height + 8}px`);
    const c = this.canvas.getContext("2d");
    c.scale(scale, scale);
    c.font = FONT;
    c.fillStyle = tint("well");
    c.fillRect(box.left, box.top, box.width, box.height);
    c.save();
    c.beginPath();
    c.rect(box.left, box.top, box.width, box.height);
    c.clip();
    c.imageSmoothingEnabled = false;
    const across = box.width / (k1 - k0);
    const down = box.height / (r1 - r0);
    const overview = this.layers[0];
    const best = this.best();
    for (const layer of new Set([overview, best])) {
      if (!layer) continue;
      const [a, b, d, e] = layer.part;
      c.drawImage(
        this.picture(layer),
        box.left + (d - k0) * across,
        box.top + (a - r0) * down,
        (e - d) * across,
        (b - a) * down,
      );
    }
    c.restore();
    const gap = Math.min(across, down) > 14 ? 1 : 0;
    if (gap) {
      c.strokeStyle = tint("paper");
      c.lineWidth = 1.5;
      c.beginPath();
      for (let i = Math.ceil(r0); i <= r1; i++) {
        c.moveTo(box.left, box.top + (i - r0) * down);
        c.lineTo(box.left + box.width, box.top + (i - r0) * down);
      }
      for (let j = Math.ceil(k0); j <= k1; j++) {
        c.moveTo(box.left + (j - k0) * across, box.top);
        c.lineTo(box.left + (j - k0) * across, box.top + box.height);
      }
      c.stroke();
    }
    this.names(c, box, across, down);
    const marked = this.cursor ?? (this.emphasis === null ? null : [this.emphasis, null]);
    if (marked) this.mark(c, box, across, down, marked);
    this.tellScale();
  }

  picture(layer) {
    const key = `${this.most} ${document.documentElement.dataset.theme} ${
      matchMedia("(prefers-color-scheme: dark)").matches
    }`;
    if (layer.image && layer.key === key) return layer.image;
    const { weights } = layer;
    const ny = weights.length;
    const nx = weights[0].length;
    const image = new OffscreenCanvas(nx, ny);
    const c = image.getContext("2d");
    const data = c.createImageData(nx, ny);
    const table = Array.from({ length: 511 }, (_, i) => colour((i - 255) / 255));
    const soft = this.soft() ? 0.5 : 1;
    let at = 0;
    for (let i = 0; i < ny; i++) {
      const row = weights[i];
      for (let j = 0; j < nx; j++, at += 4) {
        const x = row[j];
        if (x === null || Number.isNaN(x)) continue;
        const t = Math.min(Math.abs(x) / this.most, 1) ** soft;
        const [r, g, b] = table[255 + Math.round(255 * t) * (x < 0 ? -1 : 1)];
        data.data[at] = r;
        data.data[at + 1] = g;
        data.data[at + 2] = b;
        data.data[at + 3] = 255;
      }
    }
    c.putImageData(data, 0, 0);
    Object.assign(layer, { image, key });
    return image;
  }

  // Weights over long texts are small: their square roots are drawn, and the legend shows a root
  // sign.
  soft() {
    return !this.signed && Math.max(this.source.rows.length, this.source.keys.length) > 128;
  }

  names(c, box, across, down) {
    c.textBaseline = "middle";
    for (const { text, x, y, angle, at, strong, most } of labels(this, box, across, down)) {
      c.save();
      c.translate(x, y);
      c.rotate((angle * Math.PI) / 180);
      c.textAlign = at;
      c.fillStyle = tint(strong ? "ink" : "soft");
      c.fillText(most ? fitted(text, most, c) : text, 0, 0);
      c.restore();
    }
  }

  mark(c, box, across, down, [row, key]) {
    const [r0, r1, k0, k1] = this.window;
    c.strokeStyle = tint("accent");
    c.lineWidth = 1.5;
    if (row !== null && row >= Math.floor(r0) && row < r1) {
      c.strokeRect(box.left, box.top + (row - r0) * down, box.width, Math.max(down, 1.5));
    }
    if (key !== null && key >= Math.floor(k0) && key < k1) {
      c.strokeRect(box.left + (key - k0) * across, box.top, Math.max(across, 1.5), box.height);
    }
  }

  tellScale() {
    const stops = Array.from({ length: 9 }, (_, i) => css(colour(this.signed ? i / 4 - 1 : i / 8)));
    const bar = h("span", { class: "bar" });
    bar.style.setProperty("background", `linear-gradient(90deg, ${stops.join(",")})`);
    const [low, high] = this.ends();
    this.legend.replaceChildren(
      h("span", { class: "unseen" }, "Colours from "),
      low,
      bar,
      h("span", { class: "unseen" }, " to "),
      high + (this.soft() ? " √" : ""),
    );
    const said = `Colours from ${low} to ${high}${this.what ? `, ${this.what}` : ""}`;
    this.legend.title = this.scaled
      ? `${said}: ${
        this.own
          ? "this map's own largest value. Click for one scale for all maps."
          : "one scale for all maps. Click for this map's own."
      }`
      : said;
  }

  // The values at the two ends of the colours.
  ends() {
    const most = this.most === undefined ? "" : this.most === 1 ? "1" : this.most.toPrecision(2);
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
      const box = this.box;
      const [r0, r1, k0, k1] = this.drag.window;
      const dy = ((event.clientY - this.drag.y) / box.height) * (r1 - r0);
      const dx = ((event.clientX - this.drag.x) / box.width) * (k1 - k0);
      if (Math.abs(event.clientX - this.drag.x) + Math.abs(event.clientY - this.drag.y) > 4) {
        this.drag.far = true;
      }
      if (this.drag.far && this.zoomed()) this.move(r0 - dy, r1 - dy, k0 - dx, k1 - dx);
      return;
    }
    const at = this.place(event);
    this.point(at && at.map(Math.floor));
  }

  grab(event) {
    if (this.box && this.place(event)) {
      this.drag = { x: event.clientX, y: event.clientY, window: [...this.window] };
      this.canvas.setPointerCapture(event.pointerId);
    }
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
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ];
    const by = event.shiftKey ? 10 : 1;
    if (steps) {
      const [row, key] = this.cursor ?? [Math.floor(this.window[0]), Math.floor(this.window[2])];
      const next = [
        Math.min(Math.max(row + by * steps[0], 0), this.source.rows.length - 1),
        Math.min(Math.max(key + by * steps[1], 0), this.source.keys.length - 1),
      ];
      this.follow(next);
      this.point(next);
    } else if (event.key === "+" || event.key === "=") this.zoom(0.5, this.cursor);
    else if (event.key === "-") this.zoom(2, this.cursor);
    else if (event.key === "0") this.whole();
    else if (event.key === "Enter" && this.cursor && this.pick) this.pick(...this.cursor);
    else return;
    event.preventDefault();
  }

  follow([row, key]) {
    const [r0, r1, k0, k1] = this.window;
    const dy = row < r0 ? row - r0 : row >= r1 ? row + 1 - r1 : 0;
    const dx = key < k0 ? key - k0 : key >= k1 ? key + 1 - k1 : 0;
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
    if (this.emphasis !== row) {
      this.emphasis = row;
      this.draw();
    }
  }

  tell(at) {
    const value = at && this.value(...at);
    const { rows, keys } = this.source;
    const name = (list, i) => visible(list[i]).trim() || "␣";
    this.note.textContent = !at ? " " : `${name(rows, at[0])} → ${name(keys, at[1])}` +
      (rows.length > 80 ? ` (${at[0].toLocaleString()} → ${at[1].toLocaleString()})` : "") +
      (value === null || Number.isNaN(value) ? "" : `   ${value.toFixed(4)}`);
  }

  value(row, key) {
    for (const { part, weights } of [...this.layers].reverse()) {
      if (
        weights.length === part[1] - part[0] &&
        weights[0].length === part[3] - part[2] &&
        row >= part[0] &&
        row < part[1] &&
        key >= part[2] &&
        key < part[3]
      ) {
        return weights[row - part[0]][key - part[2]];
      }
    }
    return null;
  }

  zoomed() {
    return (
      this.window[1] - this.window[0] < this.source.rows.length ||
      this.window[3] - this.window[2] < this.source.keys.length
    );
  }

  zoom(by, at = null) {
    if (!this.source) return;
    const [r0, r1, k0, k1] = this.window;
    const [row, key] = at ?? [(r0 + r1) / 2, (k0 + k1) / 2];
    const least = 8;
    const span = (low, high, mid, most) => {
      const size = Math.min(Math.max((high - low) * by, Math.min(least, most)), most);
      const share = (mid - low) / (high - low);
      return [mid - share * size, mid + (1 - share) * size];
    };
    this.move(
      ...span(r0, r1, row, this.source.rows.length),
      ...span(k0, k1, key, this.source.keys.length),
    );
  }

  whole() {
    this.move(0, this.source.rows.length, 0, this.source.keys.length);
  }

  move(r0, r1, k0, k1) {
    const fit = (low, high, most) => {
      const size = Math.min(high - low, most);
      const from = Math.min(Math.max(low, 0), most - size);
      return [from, from + size];
    };
    this.window = [
      ...fit(r0, r1, this.source.rows.length),
      ...fit(k0, k1, this.source.keys.length),
    ];
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
