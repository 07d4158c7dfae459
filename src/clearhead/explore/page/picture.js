// A grid of numbers, one per patch, drawn over an image or alone.

import { colour, tint } from "./colours.js";
import { h, number, s, themed } from "./dom.js";

export class Picture {
  constructor({ title = "", size = 260, pick = null } = {}) {
    Object.assign(this, { title, size, pick, image: null, grid: null, at: null });
    this.canvas = h("canvas", { class: "picture", tabindex: 0, role: "img", "aria-label": title });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.root = h("figure", { class: "mapbox" }, h("figcaption", {}, h("span", {}, title)), this.canvas, this.note);
    this.canvas.addEventListener("pointermove", (event) => this.tell(this.place(event)));
    this.canvas.addEventListener("pointerleave", () => this.tell(this.at));
    this.canvas.addEventListener("click", (event) => this.choose(this.place(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.root);
    themed(this, "draw");
  }

  // overlay: rows of numbers; image: anything a canvas can draw; at: the chosen patch
  show({ overlay, image = null, at = null, opacity = image ? 0.65 : 1 }) {
    Object.assign(this, { grid: overlay, image, at, opacity });
    this.draw();
    this.tell(at);
  }

  draw() {
    if (!this.grid || !this.root.isConnected) return;
    const ny = this.grid.length, nx = this.grid[0].length, side = Math.min(this.size, this.root.clientWidth || this.size), scale = devicePixelRatio || 1;
    const wide = side, tall = (side * ny) / nx;
    this.canvas.width = Math.round(wide * scale);
    this.canvas.height = Math.round(tall * scale);
    this.canvas.style.setProperty("width", `${wide}px`);
    this.canvas.style.setProperty("height", `${tall}px`);
    const c = this.canvas.getContext("2d");
    c.scale(scale, scale);
    if (this.image) c.drawImage(this.image, 0, 0, wide, tall);
    const most = Math.max(...this.grid.flat().map(Math.abs)) || 1, cells = new OffscreenCanvas(nx, ny), o = cells.getContext("2d"), data = o.createImageData(nx, ny);
    this.grid.flat().forEach((x, i) => {
      const [r, g, b] = colour(x / most);
      data.data.set([r, g, b, Math.round(255 * (this.image ? this.opacity * Math.min(1, Math.abs(x) / most) : 1))], 4 * i);
    });
    o.putImageData(data, 0, 0);
    c.imageSmoothingEnabled = Boolean(this.image);
    c.drawImage(cells, 0, 0, wide, tall);
    if (this.at) {
      c.strokeStyle = tint("mark");
      c.lineWidth = 2;
      c.strokeRect((this.at[1] * wide) / nx + 1, (this.at[0] * tall) / ny + 1, wide / nx - 2, tall / ny - 2);
    }
  }

  place(event) {
    if (!this.grid) return null;
    const box = this.canvas.getBoundingClientRect();
    const y = Math.floor(((event.clientY - box.top) / box.height) * this.grid.length), x = Math.floor(((event.clientX - box.left) / box.width) * this.grid[0].length);
    return y >= 0 && x >= 0 && y < this.grid.length && x < this.grid[0].length ? [y, x] : null;
  }

  tell(at) { this.note.textContent = at ? `row ${at[0]}, column ${at[1]}: ${number(this.grid[at[0]][at[1]])}` : " "; }

  choose(at) { if (at) { this.at = at; this.draw(); this.pick?.(...at); } }

  key(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move || !this.grid) return;
    event.preventDefault();
    const [y, x] = this.at ?? [0, 0];
    this.choose([Math.min(Math.max(y + move[0], 0), this.grid.length - 1), Math.min(Math.max(x + move[1], 0), this.grid[0].length - 1)]);
    this.tell(this.at);
  }

  svg() {
    if (!this.grid) return null;
    const wide = parseFloat(this.canvas.style.width), tall = parseFloat(this.canvas.style.height);
    return s("svg", { width: wide, height: tall + 22 }, s("text", { x: 0, y: 14, fill: tint("ink"), "font-size": 13 }, this.title), s("image", { href: this.canvas.toDataURL(), y: 22, width: wide, height: tall }));
  }
}
