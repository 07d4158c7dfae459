/** One number per patch, drawn over an image or alone; a patch can be chosen. */

import { colour, dark, tint } from "../colours.js";
import { button, legendBar, slide } from "../controls.js";
import { ARROWS, h, modified, paintPixels, s, themed } from "../dom.js";
import { heading, scaleBar } from "../figures/sheet.js";
import { clamp, number, spread } from "../numbers.js";

const COARSE = 100; // an image of fewer pixels per side is drawn with visible pixels
const NEAREST = 8; // times that an image can be enlarged
const ZOOMS = { "+": 2, "-": 0.5, 0: 1 / NEAREST };

export class ImageMap {
  // what: the unit of the numbers; pick: called with the row and the column of a chosen patch;
  // patchwise: show every patch by itself over a grey image, coloured from the smallest number to
  // the largest
  constructor({ title = "", size = 300, pick = null, what = "", patchwise = false } = {}) {
    Object.assign(this, { title, size, pick, what, patchwise });
    Object.assign(this, { image: null, values: null, at: null });
    Object.assign(this, { opacity: 0.65, lines: false, near: 1 });
    this.canvas = h("canvas", { class: "picture", tabindex: 0, role: "img", "aria-label": title });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.controls = this.makeControls();
    this.frame = h("div", { class: "pictureframe" }, this.canvas);
    this.scale = h("span", { class: "legend" });
    this.caption = h("b", {}, title);
    this.root = h(
      "figure",
      { class: "mapbox" },
      h("figcaption", {}, this.caption, this.scale),
      this.frame,
      this.controls,
      this.note,
    );
    this.canvas.addEventListener("pointermove", (event) => this.tell(this.place(event)));
    this.canvas.addEventListener("pointerleave", () => this.tell(this.at));
    this.canvas.addEventListener("click", (event) => this.choose(this.place(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.root);
    themed(this, "draw");
  }

  makeControls() {
    this.blend = slide("overlay", {
      min: 0,
      max: 1,
      step: 0.05,
      value: this.opacity,
      show: (x) => `${Math.round(100 * x)} %`,
      change: (x) => {
        this.opacity = x;
        this.draw();
      },
    });
    const drawLines = () => {
      this.lines = this.patches.checked;
      this.draw();
    };
    this.patches = h("input", { type: "checkbox", onchange: drawLines });
    const zooms = h(
      "span",
      { class: "zooms", role: "group", "aria-label": "Zoom" },
      button("+", () => this.zoom(2), { "aria-label": "Nearer" }),
      button("−", () => this.zoom(0.5), { "aria-label": "Further" }),
    );
    const patches = h("label", { class: "tick" }, this.patches, "patch grid");
    return h("div", { class: "row", hidden: true }, this.blend, patches, zooms);
  }

  // How much of the overlay is drawn.
  fade(opacity) {
    this.opacity = opacity;
    this.blend.set(opacity);
  }

  // overlay: rows of numbers; image: anything that a canvas can draw; at: the chosen patch [row,
  // column]
  show({ overlay = this.values, image = this.image, at = null }) {
    Object.assign(this, { values: overlay, image, at });
    this.controls.hidden = !image;
    this.draw();
    this.tell(at);
  }

  // Give it another title, and its numbers another unit.
  call(title, what = this.what) {
    Object.assign(this, { title, what });
    this.caption.textContent = title;
    this.canvas.setAttribute("aria-label", title);
  }

  // The colour of a number from 0 to 1, or from -1 to 1.
  shade(t) {
    return colour(t);
  }

  tellScale() {
    if (this.values.flat().every((x) => x === 0)) {
      this.scale.textContent = `0 ${this.what} everywhere`;
      return;
    }
    const [low, high] = this.ends();
    const from = low < 0 ? -1 : 0;
    const bar = legendBar((t) => this.shade(from + t * (1 - from)));
    this.scale.replaceChildren(number(low), bar, `${number(high)} ${this.what}`);
  }

  zoom(by) {
    this.near = clamp(this.near * by, 1, NEAREST);
    this.draw();
    this.reveal();
  }

  // Scroll to the chosen patch.
  reveal() {
    if (!this.at || this.near === 1) return;
    const [row, column] = this.at;
    const y = (row + 0.5) / this.values.length;
    const x = (column + 0.5) / this.values[0].length;
    const { width, height } = this.canvas.style;
    this.frame.scrollTo(
      x * parseFloat(width) - this.frame.clientWidth / 2,
      y * parseFloat(height) - this.frame.clientHeight / 2,
    );
  }

  most() {
    return spread(this.values.flat().map(Math.abs))[1] || 1;
  }

  // The numbers at the ends of the colours.
  ends() {
    const [least] = spread(this.values.flat());
    const most = this.most();
    if (least < 0) return [-most, most];
    return [this.patchwise && least < most ? least : 0, most];
  }

  draw() {
    if (!this.values || !this.root.isConnected) return;
    const { canvas, image } = this;
    const wide = Math.min(this.size, this.root.clientWidth || this.size) * this.near;
    const ratio = image ? image.height / image.width : this.values.length / this.values[0].length;
    const tall = wide * ratio;
    const scale = devicePixelRatio || 1;
    this.tellScale();
    this.frame.style.setProperty("max-height", `${tall / this.near}px`);
    this.frame.style.setProperty("max-width", `${wide / this.near}px`);
    canvas.width = Math.round(wide * scale);
    canvas.height = Math.round(tall * scale);
    canvas.style.setProperty("width", `${wide}px`);
    canvas.style.setProperty("height", `${tall}px`);
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    this.paint(c, wide, tall);
    if (this.lines) this.drawGrid(c, wide, tall);
    if (this.at) this.drawChosen(c, wide, tall);
  }

  drawGrid(c, wide, tall) {
    const rows = this.values.length;
    const columns = this.values[0].length;
    c.strokeStyle = tint("paper");
    c.lineWidth = 1;
    c.beginPath();
    for (let i = 1; i < rows; i++) {
      c.moveTo(0, (i * tall) / rows);
      c.lineTo(wide, (i * tall) / rows);
    }
    for (let j = 1; j < columns; j++) {
      c.moveTo((j * wide) / columns, 0);
      c.lineTo((j * wide) / columns, tall);
    }
    c.stroke();
  }

  drawChosen(c, wide, tall) {
    const [row, column] = this.at;
    const down = tall / this.values.length;
    const across = wide / this.values[0].length;
    c.strokeStyle = tint("mark");
    c.lineWidth = 2;
    c.strokeRect(column * across + 1, row * down + 1, across - 2, down - 2);
  }

  // Draw the image and the numbers over it.
  paint(c, wide, tall) {
    if (this.image) {
      c.imageSmoothingEnabled = Math.max(this.image.width, this.image.height) >= COARSE;
      if (this.patchwise) c.filter = this.greying();
      c.drawImage(this.image, 0, 0, wide, tall);
      c.filter = "none";
    }
    const [low, high] = this.ends();
    const from = Math.max(low, 0);
    const numbers = this.values.flat();
    const cells = new OffscreenCanvas(this.values[0].length, this.values.length);
    paintPixels(cells, (i) => {
      const size = Math.min(1, (Math.abs(numbers[i]) - from) / (high - from));
      // over an image, small numbers let it through
      const alpha = this.image ? this.opacity * size : 1;
      return [...colour(Math.sign(numbers[i]) * size), Math.round(255 * alpha)];
    });
    c.imageSmoothingEnabled = !this.patchwise && Boolean(this.image) && !this.lines;
    c.drawImage(cells, 0, 0, wide, tall);
  }

  // The image recedes behind the colours: it is greyed, and dimmed or brightened by the theme.
  greying() {
    const grey = `grayscale(${Math.min(1, 2 * this.opacity)})`;
    if (dark()) return `${grey} brightness(${1 - 0.5 * this.opacity})`;
    const contrast = `contrast(${1 - 0.4 * this.opacity})`;
    return `${grey} brightness(${1 + 0.3 * this.opacity}) ${contrast}`;
  }

  // The patch under the pointer as [row, column].
  place(event) {
    if (!this.values) return null;
    const rows = this.values.length;
    const columns = this.values[0].length;
    const box = this.canvas.getBoundingClientRect();
    const y = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const x = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return y >= 0 && x >= 0 && y < rows && x < columns ? [y, x] : null;
  }

  tell(at) {
    if (!at || !this.values[at[0]]) {
      this.note.textContent = " ";
      return;
    }
    const [row, column] = at;
    const unit = this.what ? ` ${this.what}` : "";
    const value = number(this.values[row][column]);
    this.note.textContent = `row ${row}, column ${column}: ${value}${unit}`;
  }

  choose(at) {
    if (at) {
      this.at = at;
      this.draw();
      this.pick?.(...at);
    }
  }

  key(event) {
    const move = ARROWS[event.key];
    const zoom = ZOOMS[event.key];
    if ((!move && !zoom) || !this.values || modified(event)) return;
    event.preventDefault();
    if (zoom) return this.zoom(zoom);
    const [row, column] = this.at ? this.at.map((i, axis) => i + move[axis]) : [0, 0];
    this.choose([
      clamp(row, 0, this.values.length - 1),
      clamp(column, 0, this.values[0].length - 1),
    ]);
    this.tell(this.at);
    this.reveal();
  }

  svg() {
    if (!this.values) return null;
    const { near } = this;
    this.near = 1; // the figure does not depend on the zoom
    this.draw();
    const figure = this.figure();
    this.near = near;
    this.draw();
    return figure;
  }

  figure() {
    const width = parseFloat(this.canvas.style.width);
    const height = parseFloat(this.canvas.style.height);
    const [low, high] = this.ends();
    const bottom = 42 + height;
    const axis = (text, more) => s("text", { fill: tint("soft"), "font-size": 11, ...more }, text);
    return s(
      "svg",
      { width: Math.max(width + 18, 300, 7.6 * this.title.length), height: height + 86 },
      heading(this.title),
      axis("column", { x: 18, y: 36 }),
      axis("row", { x: 12, y: bottom, transform: `rotate(-90 12 ${bottom})` }),
      s("image", { href: this.canvas.toDataURL(), x: 18, y: 42, width, height }),
      scaleBar({
        x: 18,
        y: height + 54,
        low: number(low),
        high: number(high),
        label: this.what,
        signed: low < 0,
        shade: (t) => this.shade(t),
      }),
    );
  }
}
