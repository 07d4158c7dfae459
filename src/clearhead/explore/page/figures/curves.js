/**
 * Line plots with titled axes, a legend outside the plot, and the values at the pointer or at the
 * keyboard's cursor.
 */

import { tint } from "../colours.js";
import { h, s, themed } from "../dom.js";
import { clamp, number } from "../numbers.js";
import { drawable, legend, lineStyle, meaning, near, plot } from "./plot.js";
import { heading } from "./sheet.js";

const READ = 10; // values that are read at a time
const EXPORTED = 560; // pixels, the width of an exported figure
const NOTHING = "the arrow keys read the values"; // what is read aloud before a value is chosen

export class Curves {
  // label: the name of the x axis; unit: that of the y axis; log: logarithmic if the values span a
  // factor of 20; dots: draw the points alone, without lines between them and without a legend
  constructor({
    title = "",
    log = false,
    tall = 210,
    label = "step",
    unit = "",
    dots = false,
  } = {}) {
    Object.assign(this, { title, log, tall, label, unit, dots });
    Object.assign(this, { lines: [], limits: null, named: false, at: null });
    this.svgNode = s("svg", { class: "curves", role: "slider", "aria-label": title, tabindex: 0 });
    this.note = h("p", { class: "note" }, " ");
    this.keys = h("span", { class: "keys" });
    this.root = h(
      "figure",
      { class: "mapbox curvebox" },
      h("figcaption", {}, h("span", { class: "title" }, title), this.keys),
      this.svgNode,
      this.note,
    );
    this.svgNode.addEventListener("pointermove", (event) => this.point(event));
    this.svgNode.addEventListener("pointerleave", () => this.read(null));
    this.svgNode.addEventListener("keydown", (event) => this.key(event));
    this.svgNode.addEventListener("blur", () => this.read(null));
    new ResizeObserver(() => this.draw()).observe(this.root);
    themed(this, "draw");
  }

  // lines: { name, points: [[x, y], ...], colour?: number, dash?: number }
  // limits: [low, high] that the y axis includes; named: name a single line, too
  show(lines, { limits = null, named = false } = {}) {
    Object.assign(this, { lines, limits, named: named || lines.length > 1 });
    const all = lines.flatMap(({ points }) => points.filter(([, y]) => drawable(y)));
    this.xs = [...new Set(all.map(([x]) => x))].sort((a, b) => a - b);
    this.draw();
  }

  draw() {
    const wide = this.root.clientWidth;
    if (!wide || !this.root.isConnected) return;
    this.svgNode.setAttribute("width", wide);
    this.svgNode.setAttribute("height", this.tall);
    const keys = legend(this).map(([name, look]) => {
      const line = s("line", { x1: 0, x2: 20, y1: 4, y2: 4, "stroke-width": 3, ...look });
      const sample = s("svg", { width: 20, height: 8, "aria-hidden": "true" }, line);
      return h("span", { class: "key" }, sample, name);
    });
    this.keys.replaceChildren(...keys, h("span", { class: "means" }, meaning(this.lines)));
    this.plot = plot(this, wide);
    this.cursor = s("g", { "pointer-events": "none" });
    this.svgNode.replaceChildren(...this.plot.parts, this.cursor);
    this.read(this.at, this.pointed);
  }

  point(event) {
    if (!this.plot?.span) return;
    const box = this.svgNode.getBoundingClientRect();
    const [x0, x1, left, right] = this.plot.span;
    const x = x0 + ((event.clientX - box.left - left) / (right - left)) * (x1 - x0);
    const nearest = this.xs.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
    this.read(nearest, event.clientY - box.top);
  }

  key(event) {
    const xs = this.xs ?? [];
    const last = xs.length - 1;
    const leap = Math.max(1, Math.round(xs.length / 10));
    // without a cursor, keys that go back start after the last value, others before the first
    const after = this.at === null ? xs.length : xs.indexOf(this.at);
    const before = this.at === null ? -1 : xs.indexOf(this.at);
    const to = {
      ArrowLeft: after - 1,
      ArrowRight: before + 1,
      PageDown: after - leap,
      PageUp: before + leap,
      Home: 0,
      End: last,
    }[event.key];
    if (event.key === "Escape") this.read(null);
    if (to === undefined || !xs.length) return;
    event.preventDefault();
    this.read(xs[clamp(to, 0, last)]);
  }

  // Show the values at x; a line that has not begun at x, or has ended, shows none. pointed: the y
  // of the pointer, whose nearest values are read first.
  read(x, pointed = null) {
    const values = x === null || !this.plot?.span ? [] : this.valuesAt(x);
    Object.assign(this, { at: values.length ? x : null, pointed });
    this.cursor?.replaceChildren(...(values.length ? this.marks(x, values) : []));
    this.note.replaceChildren(...(values.length ? this.words(x, values, pointed) : [" "]));
    const xs = this.xs ?? [];
    const last = xs.at(-1) ?? 0;
    const aria = {
      valuemin: xs[0] ?? 0,
      valuemax: last,
      valuenow: this.at ?? last,
      valuetext: values.length ? this.note.textContent : NOTHING,
    };
    for (const [name, value] of Object.entries(aria)) {
      this.svgNode.setAttribute(`aria-${name}`, value);
    }
  }

  valuesAt(x) {
    const all = this.lines.map((line, i) => {
      return { name: line.name, look: lineStyle(line, i), ...near(line.points, x) };
    });
    return all.filter(({ y }) => y !== undefined);
  }

  // A vertical line at x, and a circle on each line.
  marks(x, values) {
    const { plot } = this;
    const across = { x1: plot.x(x), x2: plot.x(x), y1: plot.top, y2: plot.low };
    const circles = values.map(({ x: at, y, look }) => {
      const place = { cx: plot.x(at), cy: plot.y(y), r: 3.5 };
      return s("circle", { ...place, fill: look.stroke, stroke: tint("paper") });
    });
    return [s("line", { ...across, stroke: tint("soft"), "stroke-dasharray": "2 3" }), ...circles];
  }

  words(x, values, pointed) {
    const far = ({ y }) => Math.abs(this.plot.y(y) - pointed);
    const many = values.length > READ;
    const sorted = many && pointed !== null ? values.toSorted((a, b) => far(a) - far(b)) : values;
    const read = sorted.slice(0, READ);
    const spans = read.map(({ name, x: at, y, look }, i) => {
      const dot = this.named && h("i", { class: "dot", style: { background: look.stroke } });
      const whose = this.named ? `${name} ` : "";
      const where = at === x ? "" : ` (${this.label} ${at.toLocaleString("en")})`;
      const end = i < read.length - 1 ? ", " : "";
      return h("span", { class: "value" }, dot, `${whose}${number(y)}${where}${end}`);
    });
    const first = h("span", {}, `${this.label} ${x.toLocaleString("en")}: `);
    return [first, ...spans, many ? ` and ${values.length - READ} more` : ""];
  }

  // The figure with its title and legend, to be saved.
  svg(wide = EXPORTED) {
    const head = s("g", {}, heading(this.title));
    const keys = legend(this);
    let x = 0;
    let y = 34;
    for (const [name, look] of keys) {
      const long = 26 + 0.56 * 12 * name.length + 16; // of the sample, the name and the gap
      if (x && x + long > wide) {
        x = 0;
        y += 17;
      }
      const line = { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, "stroke-width": 3 };
      head.append(
        s("line", { ...line, ...look }),
        s("text", { x: x + 26, y, "font-size": 12, fill: tint("ink") }, name),
      );
      x += long;
    }
    const means = meaning(this.lines);
    if (means) {
      const place = { x: wide, y: 14, "text-anchor": "end" };
      head.append(s("text", { ...place, "font-size": 11.5, fill: tint("soft") }, means));
    }
    const top = keys.length ? y + 8 : 22;
    const below = s("g", { transform: `translate(0,${top})` }, plot(this, wide).parts);
    return s("svg", { width: wide, height: top + this.tall }, head, below);
  }
}
