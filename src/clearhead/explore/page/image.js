/**
 * Images: one with a grid of numbers over it (ImageMap), and a place to drop, paste or choose one
 * (ImageInput).
 */

import { picture, upload } from "./api.js";
import { colour, css, dark, tint } from "./colours.js";
import { h, number, s, slide, themed } from "./dom.js";
import { scaleBar } from "./figure.js";

const LARGEST = 1024; // pixels of the longer side that are sent to the server
// bytes of a file that is sent as it is, if its image is not larger than that
const SMALL = 1 << 20;
// formats that the server reads as well
const PLAIN = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const COARSE = 100; // an image of fewer pixels per side is drawn with visible pixels

/** One number per patch, drawn over an image or alone; a patch can be chosen. */
export class ImageMap {
  // what: the unit of the numbers; pick: called with the row and the column of a chosen patch
  // patchwise: show every patch by itself over a grey image, coloured from the smallest number to
  // the largest
  constructor({ title = "", size = 300, pick = null, what = "", patchwise = false } = {}) {
    Object.assign(this, {
      title,
      size,
      pick,
      what,
      patchwise,
      image: null,
      values: null,
      at: null,
      opacity: 0.65,
      lines: false,
      near: 1,
    });
    this.canvas = h("canvas", { class: "picture", tabindex: 0, role: "img", "aria-label": title });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
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
    this.patches = h("input", {
      type: "checkbox",
      onchange: () => {
        this.lines = this.patches.checked;
        this.draw();
      },
    });
    this.controls = h(
      "div",
      { class: "row", hidden: true },
      this.blend,
      h("label", { class: "tick" }, this.patches, "patch grid"),
      h(
        "span",
        { class: "zooms", role: "group", "aria-label": "Zoom" },
        h("button", { type: "button", "aria-label": "Nearer", onclick: () => this.zoom(2) }, "+"),
        h(
          "button",
          { type: "button", "aria-label": "Further", onclick: () => this.zoom(0.5) },
          "−",
        ),
      ),
    );
    this.frame = h("div", { class: "pictureframe" }, this.canvas);
    this.scale = h("span", { class: "legend" });
    this.root = h(
      "figure",
      { class: "mapbox" },
      h("figcaption", {}, this.caption = h("b", {}, title), this.scale),
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
    const bar = h("span", { class: "bar" });
    const [low, high] = this.ends();
    const from = low < 0 ? -1 : 0;
    bar.style.setProperty(
      "background",
      `linear-gradient(90deg, ${
        Array.from({ length: 9 }, (_, i) => css(this.shade(from + (i / 8) * (1 - from)))).join(",")
      })`,
    );
    if (this.values.flat().every((x) => x === 0)) {
      this.scale.textContent = `0 ${this.what} everywhere`;
    } else this.scale.replaceChildren(number(low), bar, `${number(high)} ${this.what}`);
  }

  zoom(by) {
    this.near = Math.min(8, Math.max(1, this.near * by));
    this.draw();
    this.reveal();
  }

  // Scroll to the chosen patch.
  reveal() {
    if (!this.at || this.near === 1) return;
    const { clientWidth: wide, clientHeight: tall } = this.frame;
    const [y, x] = this.at.map(
      (i, axis) => (i + 0.5) / (axis ? this.values[0].length : this.values.length),
    );
    this.frame.scrollTo(
      x * parseFloat(this.canvas.style.width) - wide / 2,
      y * parseFloat(this.canvas.style.height) - tall / 2,
    );
  }

  most() {
    return this.values.flat().reduce((a, x) => Math.max(a, Math.abs(x)), 0) || 1;
  }

  // The numbers at the ends of the colours.
  ends() {
    const all = this.values.flat();
    const least = all.reduce((a, x) => Math.min(a, x), Infinity);
    const most = this.most();
    return [least < 0 ? -most : this.patchwise && least < most ? least : 0, most];
  }

  draw() {
    if (!this.values || !this.root.isConnected) return;
    const ny = this.values.length;
    const nx = this.values[0].length;
    const side = Math.min(this.size, this.root.clientWidth || this.size) * this.near;
    const scale = devicePixelRatio || 1;
    const wide = side;
    const tall = this.image ? (side * this.image.height) / this.image.width : (side * ny) / nx;
    const c = this.canvas.getContext("2d");
    this.tellScale();
    this.frame.style.setProperty("max-height", `${tall / this.near}px`);
    this.frame.style.setProperty("max-width", `${wide / this.near}px`);
    this.canvas.width = Math.round(wide * scale);
    this.canvas.height = Math.round(tall * scale);
    this.canvas.style.setProperty("width", `${wide}px`);
    this.canvas.style.setProperty("height", `${tall}px`);
    c.scale(scale, scale);
    this.paint(c, wide, tall);
    if (this.lines) {
      c.strokeStyle = tint("paper");
      c.lineWidth = 1;
      c.beginPath();
      for (let i = 1; i < ny; i++) {
        c.moveTo(0, (i * tall) / ny);
        c.lineTo(wide, (i * tall) / ny);
      }
      for (let j = 1; j < nx; j++) {
        c.moveTo((j * wide) / nx, 0);
        c.lineTo((j * wide) / nx, tall);
      }
      c.stroke();
    }
    if (this.at) {
      c.strokeStyle = tint("mark");
      c.lineWidth = 2;
      c.strokeRect(
        (this.at[1] * wide) / nx + 1,
        (this.at[0] * tall) / ny + 1,
        wide / nx - 2,
        tall / ny - 2,
      );
    }
  }

  // Draw the image and the numbers over it.
  paint(c, wide, tall) {
    if (this.image) {
      c.imageSmoothingEnabled = Math.max(this.image.width, this.image.height) >= COARSE;
      if (this.patchwise) {
        c.filter = `grayscale(${Math.min(1, 2 * this.opacity)}) ${
          dark()
            ? `brightness(${1 - 0.5 * this.opacity})`
            : `brightness(${1 + 0.3 * this.opacity}) contrast(${1 - 0.4 * this.opacity})`
        }`;
      }
      c.drawImage(this.image, 0, 0, wide, tall);
      c.filter = "none";
    }
    const ny = this.values.length;
    const nx = this.values[0].length;
    const [low, high] = this.ends();
    const from = Math.max(low, 0);
    const cells = new OffscreenCanvas(nx, ny);
    const o = cells.getContext("2d");
    const data = o.createImageData(nx, ny);
    this.values.flat().forEach((x, i) => {
      const size = Math.min(1, (Math.abs(x) - from) / (high - from));
      const [r, g, b] = colour(Math.sign(x) * size);
      data.data.set([r, g, b, Math.round(255 * (this.image ? this.opacity * size : 1))], 4 * i);
    });
    o.putImageData(data, 0, 0);
    c.imageSmoothingEnabled = !this.patchwise && Boolean(this.image) && !this.lines;
    c.drawImage(cells, 0, 0, wide, tall);
  }

  place(event) {
    if (!this.values) return null;
    const box = this.canvas.getBoundingClientRect();
    const y = Math.floor(((event.clientY - box.top) / box.height) * this.values.length);
    const x = Math.floor(((event.clientX - box.left) / box.width) * this.values[0].length);
    return y >= 0 && x >= 0 && y < this.values.length && x < this.values[0].length ? [y, x] : null;
  }

  tell(at) {
    this.note.textContent = at && this.values[at[0]]
      ? `row ${at[0]}, column ${at[1]}: ${number(this.values[at[0]][at[1]])}${
        this.what ? ` ${this.what}` : ""
      }`
      : " ";
  }

  choose(at) {
    if (at) {
      this.at = at;
      this.draw();
      this.pick?.(...at);
    }
  }

  key(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ];
    const zoom = { "+": 2, "-": 0.5, 0: 1 / 8 }[event.key];
    if ((!move && !zoom) || !this.values || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (zoom) return this.zoom(zoom);
    const [y, x] = this.at ? this.at.map((i, axis) => i + move[axis]) : [0, 0];
    this.choose([
      Math.min(Math.max(y, 0), this.values.length - 1),
      Math.min(Math.max(x, 0), this.values[0].length - 1),
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
    const wide = parseFloat(this.canvas.style.width);
    const tall = parseFloat(this.canvas.style.height);
    const [low, high] = this.ends();
    const axis = (text, more) => s("text", { fill: tint("soft"), "font-size": 11, ...more }, text);
    return s(
      "svg",
      { width: Math.max(wide + 18, 300, 7.6 * this.title.length), height: tall + 86 },
      s(
        "text",
        { x: 0, y: 14, fill: tint("ink"), "font-size": 14, "font-weight": 600 },
        this.title,
      ),
      axis("column", { x: 18, y: 36 }),
      axis("row", { x: 12, y: 42 + tall, transform: `rotate(-90 12 ${42 + tall})` }),
      s("image", { href: this.canvas.toDataURL(), x: 18, y: 42, width: wide, height: tall }),
      scaleBar({
        x: 18,
        y: tall + 54,
        low: number(low),
        high: number(high),
        label: this.what,
        signed: low < 0,
        shade: (t) => this.shade(t),
      }),
    );
  }
}

/**
 * A place to drop, paste or choose an image. It is shrunk here and decoded by the server in memory;
 * found: called with { id, width, height, image }.
 */
export class ImageInput {
  constructor({ found, fail, text = "Drop, paste or choose an image" }) {
    Object.assign(this, { found, fail });
    this.file = h("input", {
      type: "file",
      accept: "image/*",
      class: "unseen",
      tabindex: -1,
      "aria-hidden": "true",
      onchange: () => {
        this.take(this.file.files[0]);
        this.file.value = "";
      },
    });
    this.root = h(
      "div",
      { class: "drop" },
      h("button", { type: "button", onclick: () => this.file.click() }, text),
      this.file,
    );
    // a file may be dropped anywhere on the page
    const shown = () => this.root.isConnected && this.root.offsetParent;
    addEventListener("dragover", (event) => {
      if (shown() && event.dataTransfer.types.includes("Files")) {
        event.preventDefault();
        this.root.classList.add("over");
      }
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) this.root.classList.remove("over");
    });
    addEventListener("drop", (event) => {
      this.root.classList.remove("over");
      if (shown() && event.dataTransfer.files.length) {
        event.preventDefault();
        this.take(event.dataTransfer.files[0]);
      }
    });
    addEventListener("paste", (event) => {
      const one = [...event.clipboardData.files].find((file) => file.type.startsWith("image/"));
      if (one && shown()) {
        event.preventDefault();
        this.take(one);
      }
    });
  }

  async take(file) {
    if (!file) return this.fail(new Error("There is no image in what was given."));
    const asked = (this.asked = {});
    let image = null;
    let kept;
    try {
      image = await createImageBitmap(file, { imageOrientation: "from-image" });
    } catch {
      /* the server reads some formats that the browser does not */
    }
    try {
      const small = image &&
        Math.max(image.width, image.height) <= LARGEST &&
        file.size <= SMALL &&
        PLAIN.includes(file.type);
      kept = await upload("images", image && !small ? await shrunk(image) : file);
      image ??= await picture("images/one", { id: kept.id });
    } catch (trouble) {
      if (this.asked === asked) {
        this.fail(
          trouble.offline ? trouble : new Error(
            `${
              file.name ? `The file ${file.name}` : "This image"
            } cannot be used: ${trouble.message}`,
          ),
        );
      }
      return;
    }
    // unless another was given meanwhile
    if (this.asked === asked) this.found({ ...kept, image, name: file.name });
  }
}

// An image as a file, no larger than the server needs.
function shrunk(image) {
  const scale = Math.min(1, LARGEST / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * image.width));
  canvas.height = Math.max(1, Math.round(scale * image.height));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/webp", 0.95));
}
