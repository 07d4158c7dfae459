/**
 * The receptive fields of a model: for each layer, the part of the image that its unit in the
 * middle depends on.
 */

import { colour, tint } from "../colours.js";
import { saver } from "../controls.js";
import { h, paintPixels, s, themed } from "../dom.js";
import { heading } from "../figures/sheet.js";
import { number, spread } from "../numbers.js";

const CELL = 84; // pixels of a picture in the SVG
const ACROSS = 12; // pictures per row of the SVG

const pixels = (x) => `${Math.round(x)} px`;

export class FieldStrip {
  constructor() {
    this.name = h("b", {});
    this.list = h("ul", { class: "fields" });
    this.root = h(
      "figure",
      { class: "mapbox fieldbox", hidden: true },
      h(
        "figcaption",
        {},
        this.name,
        saver(() => this.svg()),
      ),
      this.list,
    );
    themed(this, "draw");
  }

  // study: { layers, width, sides, theoretical, fields }
  show(model, study) {
    Object.assign(this, { model, study });
    this.root.hidden = false;
    this.draw();
  }

  clear() {
    this.study = null;
    this.root.hidden = true;
    this.list.replaceChildren();
  }

  title() {
    return `${this.model}: an image of ${this.study.width} pixels per side`;
  }

  // What a layer's field measures, in words.
  told(i) {
    const { layers, sides, theoretical, width } = this.study;
    const side = Math.round(sides[i]);
    const most = theoretical[i];
    const all = most === null || most >= width;
    const reach = all ? "the whole image" : `${most} × ${most}`;
    const within = `90 % of the gradient is within ${side} × ${side} pixels`;
    return `${layers[i]}: ${within}; it can depend on ${reach}`;
  }

  draw() {
    if (!this.study) return;
    this.name.textContent = this.title();
    this.list.replaceChildren(
      ...this.study.layers.map((layer, i) =>
        h(
          "li",
          { title: this.told(i) },
          this.picture(i),
          h("span", { class: "layer" }, layer),
          h("small", {}, pixels(this.study.sides[i])),
        )
      ),
    );
  }

  // The field as colours up to its own largest value (their square roots), and squares: 90 % of it,
  // and all that it can depend on.
  picture(i) {
    const { fields, sides, theoretical, width } = this.study;
    const map = fields[i];
    const ny = map.length;
    const nx = map[0].length;
    const numbers = map.flat();
    const most = spread(numbers)[1] || 1;
    const scale = 2; // pixels of the canvas per pixel on screen
    const size = CELL * scale;
    const node = h("canvas", {
      width: size,
      height: Math.round((size * ny) / nx),
      role: "img",
      "aria-label": this.told(i),
    });
    const c = node.getContext("2d");
    const shadeOf = (at) => [...colour(Math.sqrt(numbers[at] / most)), 255];
    const small = paintPixels(new OffscreenCanvas(nx, ny), shadeOf);
    c.imageSmoothingEnabled = false;
    c.drawImage(small, 0, 0, node.width, node.height);
    const [y, x] = centre(map);
    const square = (side, stroke, dash) => {
      const long = (side / width) * node.width;
      c.strokeStyle = stroke;
      c.lineWidth = 1.5 * scale;
      c.setLineDash(dash);
      c.strokeRect(x * node.width - long / 2, y * node.height - long / 2, long, long);
    };
    square(sides[i], tint("mark"), []);
    if (theoretical[i] !== null && theoretical[i] < width) {
      square(theoretical[i], tint("soft"), [4 * scale, 3 * scale]);
    }
    return node;
  }

  svg() {
    if (!this.study) return null;
    const { layers, sides } = this.study;
    const step = CELL + 12;
    const rows = Math.ceil(layers.length / ACROSS);
    const root = s(
      "svg",
      {
        width: step * Math.min(layers.length, ACROSS),
        height: 26 + rows * (CELL + 40),
        "font-size": 11,
      },
      heading(this.title()),
    );
    layers.forEach((layer, i) => {
      const x = step * (i % ACROSS);
      const y = 26 + Math.floor(i / ACROSS) * (CELL + 40);
      root.append(
        s("image", { href: this.picture(i).toDataURL(), x, y, width: CELL, height: CELL }),
        s("text", { x, y: y + CELL + 13, fill: tint("ink") }, layer),
        s(
          "text",
          { x, y: y + CELL + 27, fill: tint("soft") },
          `${number(Math.round(sides[i]))} px`,
        ),
      );
    });
    return root;
  }
}

// The centre of gravity of a map, as shares of its height and width.
function centre(map) {
  let sum = 0;
  let y = 0;
  let x = 0;
  map.forEach((row, i) =>
    row.forEach((w, j) => {
      sum += w;
      y += w * (i + 0.5);
      x += w * (j + 0.5);
    })
  );
  return sum ? [y / sum / map.length, x / sum / map[0].length] : [0.5, 0.5];
}
