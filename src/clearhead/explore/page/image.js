// Images: one with a grid of numbers over it (ImageMap), and a place to drop, paste or choose one (ImageInput).

import { upload } from "./api.js";
import { colour, css, tint } from "./colours.js";
import { h, number, s, slide, themed } from "./dom.js";
import { scaleBar } from "./figure.js";

const LARGEST = 1024; // pixels of the longer side that are sent to the server

// One number per patch, drawn over an image or alone; a patch can be chosen.
export class ImageMap {
  // what: the unit of the numbers; pick: called with the row and the column of a chosen patch
  constructor({ title = "", size = 300, pick = null, what = "" } = {}) {
    Object.assign(this, { title, size, pick, what, image: null, values: null, at: null, opacity: 0.65, lines: false, near: 1 });
    this.canvas = h("canvas", { class: "picture", tabindex: 0, role: "img", "aria-label": title });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.blend = slide("overlay", { min: 0, max: 1, step: 0.05, value: this.opacity, show: (x) => `${Math.round(100 * x)} %`, change: (x) => { this.opacity = x; this.draw(); } });
    this.patches = h("input", { type: "checkbox", onchange: () => { this.lines = this.patches.checked; this.draw(); } });
    this.controls = h("div", { class: "row", hidden: true }, this.blend, h("label", { class: "tick" }, this.patches, "patch grid"),
      h("span", { class: "zooms", role: "group", "aria-label": "Zoom" }, h("button", { type: "button", "aria-label": "Nearer", onclick: () => this.zoom(2) }, "+"), h("button", { type: "button", "aria-label": "Further", onclick: () => this.zoom(0.5) }, "−")));
    this.frame = h("div", { class: "pictureframe" }, this.canvas);
    this.scale = h("span", { class: "legend" });
    this.root = h("figure", { class: "mapbox" }, h("figcaption", {}, (this.caption = h("b", {}, title)), this.scale), this.frame, this.controls, this.note);
    this.canvas.addEventListener("pointermove", (event) => this.tell(this.place(event)));
    this.canvas.addEventListener("pointerleave", () => this.tell(this.at));
    this.canvas.addEventListener("click", (event) => this.choose(this.place(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.root);
    themed(this, "draw");
  }

  // overlay: rows of numbers; image: anything that a canvas can draw; at: the chosen patch [row, column]
  show({ overlay = this.values, image = this.image, at = null }) {
    Object.assign(this, { values: overlay, image, at });
    this.controls.hidden = !image;
    this.draw();
    this.tell(at);
  }

  // Give it another title.
  call(title) {
    this.title = this.caption.textContent = title;
    this.canvas.setAttribute("aria-label", title);
  }

  get signed() { return this.values.flat().some((x) => x < 0); }

  tellScale() {
    const bar = h("span", { class: "bar" }), most = this.most(), low = this.signed ? -1 : 0;
    bar.style.setProperty("background", `linear-gradient(90deg, ${Array.from({ length: 9 }, (_, i) => css(colour(low + (i / 8) * (1 - low)))).join(",")})`);
    this.scale.replaceChildren(number(low * most), bar, `${number(most)} ${this.what}`);
  }

  zoom(by) { this.near = Math.min(8, Math.max(1, this.near * by)); this.draw(); }

  most() { return this.values.flat().reduce((a, x) => Math.max(a, Math.abs(x)), 0) || 1; }

  draw() {
    if (!this.values || !this.root.isConnected) return;
    const ny = this.values.length, nx = this.values[0].length, side = Math.min(this.size, this.root.clientWidth || this.size) * this.near, scale = devicePixelRatio || 1;
    const wide = side, tall = (side * ny) / nx, c = this.canvas.getContext("2d"), most = this.most();
    this.tellScale();
    this.frame.style.setProperty("max-height", `${tall / this.near}px`);
    this.frame.style.setProperty("max-width", `${wide / this.near}px`);
    this.canvas.width = Math.round(wide * scale);
    this.canvas.height = Math.round(tall * scale);
    this.canvas.style.setProperty("width", `${wide}px`);
    this.canvas.style.setProperty("height", `${tall}px`);
    c.scale(scale, scale);
    if (this.image) c.drawImage(this.image, 0, 0, wide, tall);
    const cells = new OffscreenCanvas(nx, ny), o = cells.getContext("2d"), data = o.createImageData(nx, ny);
    this.values.flat().forEach((x, i) => {
      const [r, g, b] = colour(x / most);
      data.data.set([r, g, b, Math.round(255 * (this.image ? this.opacity * Math.min(1, Math.abs(x) / most) : 1))], 4 * i);
    });
    o.putImageData(data, 0, 0);
    c.imageSmoothingEnabled = Boolean(this.image) && !this.lines;
    c.drawImage(cells, 0, 0, wide, tall);
    if (this.lines) {
      c.strokeStyle = tint("paper");
      c.lineWidth = 1;
      c.beginPath();
      for (let i = 1; i < ny; i++) { c.moveTo(0, (i * tall) / ny); c.lineTo(wide, (i * tall) / ny); }
      for (let j = 1; j < nx; j++) { c.moveTo((j * wide) / nx, 0); c.lineTo((j * wide) / nx, tall); }
      c.stroke();
    }
    if (this.at) {
      c.strokeStyle = tint("mark");
      c.lineWidth = 2;
      c.strokeRect((this.at[1] * wide) / nx + 1, (this.at[0] * tall) / ny + 1, wide / nx - 2, tall / ny - 2);
    }
  }

  place(event) {
    if (!this.values) return null;
    const box = this.canvas.getBoundingClientRect();
    const y = Math.floor(((event.clientY - box.top) / box.height) * this.values.length), x = Math.floor(((event.clientX - box.left) / box.width) * this.values[0].length);
    return y >= 0 && x >= 0 && y < this.values.length && x < this.values[0].length ? [y, x] : null;
  }

  tell(at) { this.note.textContent = at && this.values[at[0]] ? `row ${at[0]}, column ${at[1]}: ${number(this.values[at[0]][at[1]])}${this.what ? ` ${this.what}` : ""}` : " "; }

  choose(at) { if (at) { this.at = at; this.draw(); this.pick?.(...at); } }

  key(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move || !this.values) return;
    event.preventDefault();
    const [y, x] = this.at ?? [0, 0];
    this.choose([Math.min(Math.max(y + move[0], 0), this.values.length - 1), Math.min(Math.max(x + move[1], 0), this.values[0].length - 1)]);
    this.tell(this.at);
  }

  svg() {
    if (!this.values) return null;
    const wide = parseFloat(this.canvas.style.width), tall = parseFloat(this.canvas.style.height), { signed } = this, most = number(this.most()), axis = (text, more) => s("text", { fill: tint("soft"), "font-size": 11, ...more }, text);
    return s("svg", { width: Math.max(wide + 18, 300, 7.6 * this.title.length), height: tall + 86 }, s("text", { x: 0, y: 14, fill: tint("ink"), "font-size": 14, "font-weight": 600 }, this.title),
      axis("column", { x: 18, y: 36 }), axis("row", { x: 12, y: 42 + tall, transform: `rotate(-90 12 ${42 + tall})` }), s("image", { href: this.canvas.toDataURL(), x: 18, y: 42, width: wide, height: tall }),
      scaleBar({ x: 18, y: tall + 54, low: signed ? `−${most}` : "0", high: most, label: this.what, signed }));
  }
}

// A place to drop, paste or choose an image. It is shrunk here and decoded by the server in memory; found: called with { id, width, height, image }.
export class ImageInput {
  constructor({ found, fail, text = "Drop, paste or choose an image" }) {
    Object.assign(this, { found, fail });
    this.file = h("input", { type: "file", accept: "image/*", class: "unseen", tabindex: -1, "aria-hidden": "true", onchange: () => { this.take(this.file.files[0]); this.file.value = ""; } });
    this.root = h("div", { class: "drop" }, h("button", { type: "button", onclick: () => this.file.click() }, text), this.file);
    this.root.addEventListener("dragover", (event) => { event.preventDefault(); this.root.classList.add("over"); });
    this.root.addEventListener("dragleave", () => this.root.classList.remove("over"));
    this.root.addEventListener("drop", (event) => { event.preventDefault(); this.root.classList.remove("over"); this.take([...event.dataTransfer.files].find((one) => one.type.startsWith("image/"))); });
    addEventListener("paste", (event) => { const one = [...event.clipboardData.files].find((file) => file.type.startsWith("image/")); if (one && this.root.isConnected && this.root.offsetParent) { event.preventDefault(); this.take(one); } });
  }

  async take(file) {
    if (!file) return this.fail(new Error("There is no image in what was given."));
    try {
      let image;
      try { image = await createImageBitmap(file, { imageOrientation: "from-image" }); } catch { throw new Error(`${file.name || "This file"} cannot be read as an image`); }
      this.found({ ...(await upload("images", await shrunk(image))), image, name: file.name });
    } catch (trouble) { this.fail(trouble); }
  }
}

// An image as a file, no larger than the server needs.
async function shrunk(image) {
  const scale = Math.min(1, LARGEST / Math.max(image.width, image.height)), canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * image.width));
  canvas.height = Math.max(1, Math.round(scale * image.height));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/webp", 0.95));
}
