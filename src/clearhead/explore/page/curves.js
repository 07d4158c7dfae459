// Line plots against steps, which show the values at the pointer.

import { LINES, tint } from "./colours.js";
import { h, number, s, themed } from "./dom.js";

export class Curves {
  constructor({ title, log = false, tall = 180, label = "step" } = {}) {
    Object.assign(this, { title, log, tall, label, lines: [] });
    this.svgNode = s("svg", { class: "curves", role: "img", "aria-label": title, tabindex: 0 });
    this.note = h("p", { class: "note" }, " ");
    this.root = h("figure", { class: "mapbox" }, h("figcaption", {}, h("span", {}, title)), this.svgNode, this.note);
    this.svgNode.addEventListener("pointermove", (event) => this.read(event.clientX));
    this.svgNode.addEventListener("pointerleave", () => this.read(null));
    this.svgNode.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.root);
    themed(this, "draw");
  }

  // lines: { name, points: [[x, y], ...], colour?: number }
  show(lines) { this.lines = lines; this.draw(); }

  draw() {
    const wide = this.root.clientWidth;
    if (!wide || !this.root.isConnected) return;
    const tall = this.tall, right = 12, low = tall - 24, top = 8;
    this.svgNode.setAttribute("width", wide);
    this.svgNode.setAttribute("height", tall);
    const all = this.lines.flatMap(({ points }) => points).filter(([, y]) => y !== null && Number.isFinite(y));
    if (!all.length) { this.svgNode.replaceChildren(s("text", { x: wide / 2, y: tall / 2, "text-anchor": "middle", fill: tint("soft"), "font-size": 13 }, "nothing yet")); return; }
    const xs = all.map(([x]) => x), ys = all.map(([, y]) => y);
    const spread = (list) => list.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
    let [x0, x1] = spread(xs), [y0, y1] = spread(ys);
    const log = this.log && y0 > 0 && y1 / y0 > 20;
    if (!log && y0 > 0 && y0 < 0.4 * y1) y0 = 0;
    if (x1 === x0) x1 = x0 + 1;
    if (y1 === y0) { y1 += Math.abs(y1) * 0.1 || 1; y0 -= log ? y0 * 0.5 : 0; }
    const marks = log ? decades(y0, y1) : ticks(y0, y1), left = Math.max(48, 14 + 6.5 * Math.max(0, ...marks.map((y) => short(y).length)));
    const f = log ? Math.log : (y) => y;
    this.x = (x) => left + ((x - x0) / (x1 - x0)) * (wide - left - right);
    this.y = (y) => low - ((f(y) - f(y0)) / (f(y1) - f(y0))) * (low - top);
    this.span = [x0, x1, left, wide - right];
    const axes = s("g", { "font-size": 11, fill: tint("soft") });
    for (const y of marks) {
      axes.append(s("line", { x1: left, x2: wide - right, y1: this.y(y), y2: this.y(y), stroke: tint("hair") }), s("text", { x: left - 6, y: this.y(y) + 4, "text-anchor": "end" }, short(y)));
    }
    for (const x of ticks(x0, x1)) axes.append(s("text", { x: this.x(x), y: low + 16, "text-anchor": "middle" }, short(x)));
    const drawn = this.lines.map(({ points, colour: c }, i) => s("path", { fill: "none", "stroke-width": this.lines.length > 12 ? 1 : 1.7, stroke: LINES[(c ?? i) % LINES.length], opacity: this.lines.length > 6 ? 0.75 : 1, "stroke-linejoin": "round",
      d: thin(points).filter(([, y]) => y !== null && Number.isFinite(y) && (!log || y > 0)).map(([x, y], j) => `${j ? "L" : "M"}${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`).join("") }));
    for (const [i, { points, colour: c }] of this.lines.entries()) if (points.length === 1 && points[0][1] !== null) drawn.push(s("circle", { cx: this.x(points[0][0]), cy: this.y(points[0][1]), r: 3.5, fill: LINES[(c ?? i) % LINES.length] }));
    const names = this.lines.length > 1 && this.lines.length <= 8 ? s("g", { "font-size": 12, stroke: tint("paper"), "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke" }, this.lines.map(({ name, colour: c }, i) => s("text", { x: wide - right - 4, y: top + 12 + 15 * i, "text-anchor": "end", fill: LINES[(c ?? i) % LINES.length] }, name))) : null;
    this.rule = s("line", { y1: top, y2: low, stroke: tint("soft"), "stroke-dasharray": "2 3", visibility: "hidden" });
    this.svgNode.replaceChildren(...[axes, ...drawn, names, this.rule].filter(Boolean));
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const xs = this.lines[0]?.points.map(([x]) => x) ?? [];
    if (!by || !xs.length) return;
    event.preventDefault();
    this.index = Math.min(Math.max((this.index ?? (by > 0 ? -1 : xs.length)) + by, 0), xs.length - 1);
    this.readAt(xs[this.index]);
  }

  read(client) {
    if (client === null || !this.span) { this.rule?.setAttribute("visibility", "hidden"); this.note.textContent = " "; return; }
    const [x0, x1, left, right] = this.span, at = client - this.svgNode.getBoundingClientRect().left;
    this.readAt(x0 + ((at - left) / (right - left)) * (x1 - x0));
  }

  readAt(x) {
    const near = this.lines.map(({ name, points }) => {
      let best = null;
      for (const [px, py] of points) if (py !== null && (best === null || Math.abs(px - x) < Math.abs(best[0] - x))) best = [px, py];
      return best && [name, ...best];
    }).filter(Boolean);
    if (!near.length) return;
    const at = near.reduce((a, b) => (Math.abs(b[1] - x) < Math.abs(a[1] - x) ? b : a))[1];
    this.rule.setAttribute("x1", this.x(at));
    this.rule.setAttribute("x2", this.x(at));
    this.rule.setAttribute("visibility", "visible");
    const said = near.slice(0, 6).map(([name, , y]) => (near.length > 1 ? `${name} ${number(y)}` : number(y))).join("   ");
    this.note.textContent = `${this.label} ${at.toLocaleString()}: ${said}${near.length > 6 ? " …" : ""}`;
  }

  svg() {
    const drawn = this.svgNode.cloneNode(true);
    drawn.setAttribute("y", 20);
    return s("svg", { width: drawn.getAttribute("width"), height: Number(drawn.getAttribute("height")) + 20 }, s("text", { x: 4, y: 14, "font-size": 13, fill: tint("ink") }, this.title), drawn);
  }
}

function ticks(low, high) {
  const raw = (high - low) / 4, size = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find((x) => x * size >= raw) * size;
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-6; x += step) found.push(Number(x.toPrecision(12)));
  return found;
}

function decades(low, high) {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) for (const k of [1, 3]) { const y = Number((k * 10 ** e).toPrecision(1)); if (y >= low && y <= high) found.push(y); }
  return found;
}

const short = (x) => (Math.abs(x) >= 1e6 ? `${x / 1e6}M` : Math.abs(x) >= 1e4 ? `${x / 1e3}k` : Math.abs(x) > 0 && Math.abs(x) < 1e-3 ? x.toExponential(0) : String(x));

// Reduce a line to about a thousand points, each the mean of a few neighbours.
function thin(points) {
  const every = Math.ceil(points.length / 1000);
  if (every === 1) return points;
  const found = [];
  for (let i = 0; i < points.length; i += every) {
    const some = points.slice(i, i + every).filter(([, y]) => y !== null);
    if (some.length) found.push([some[some.length - 1][0], some.reduce((sum, [, y]) => sum + y, 0) / some.length]);
  }
  return found;
}
