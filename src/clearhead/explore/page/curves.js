/**
 * Line plots with titled axes, a legend outside the plot, and the values at the pointer or at the
 * keyboard's cursor.
 */

import { LINES, tint } from "./colours.js";
import { h, number, s, themed } from "./dom.js";

// lines beyond the number of colours repeat them with other dashes
const DASHES = [null, "7 3", "2 3"];
const TELLABLE = LINES.length * DASHES.length; // lines that a legend can tell apart
const READ = 10; // values that are read at a time
const MARKED = 16; // the largest number of points of a line that shows each as a dot
// drawn points per line; of more, the means of neighbours are drawn, and the range of their values
const POINTS = 400;
const EXPORTED = 560; // pixels, the width of an exported figure

export class Curves {
  // label: the name of the x axis; unit: that of the y axis; log: logarithmic if the values span a
  // factor of 20
  // dots: draw the points alone, without lines between them and without a legend
  constructor({
    title = "",
    log = false,
    tall = 210,
    label = "step",
    unit = "",
    dots = false,
  } = {}) {
    Object.assign(this, {
      title,
      log,
      tall,
      label,
      unit,
      dots,
      lines: [],
      limits: null,
      named: false,
      at: null,
    });
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
    this.xs = [
      ...new Set(
        lines.flatMap(({ points }) => points.filter(([, y]) => drawable(y)).map(([x]) => x)),
      ),
    ].sort((a, b) => a - b);
    this.draw();
  }

  draw() {
    const wide = this.root.clientWidth;
    if (!wide || !this.root.isConnected) return;
    this.svgNode.setAttribute("width", wide);
    this.svgNode.setAttribute("height", this.tall);
    this.keys.replaceChildren(
      ...legend(this).map(([name, look]) =>
        h(
          "span",
          { class: "key" },
          s(
            "svg",
            { width: 20, height: 8, "aria-hidden": "true" },
            s("line", { x1: 0, x2: 20, y1: 4, y2: 4, "stroke-width": 3, ...look }),
          ),
          name,
        )
      ),
      h("span", { class: "means" }, meaning(this.lines)),
    );
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
    this.read(
      this.xs.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a)),
      event.clientY - box.top,
    );
  }

  key(event) {
    const xs = this.xs ?? [];
    const leap = Math.max(1, Math.round(xs.length / 10));
    const now = this.at === null ? null : xs.indexOf(this.at);
    const to = {
      ArrowLeft: now === null ? xs.length - 1 : now - 1,
      ArrowRight: now === null ? 0 : now + 1,
      PageDown: (now ?? xs.length) - leap,
      PageUp: (now ?? -1) + leap,
      Home: 0,
      End: xs.length - 1,
    }[event.key];
    if (event.key === "Escape") this.read(null);
    if (to === undefined || !xs.length) return;
    event.preventDefault();
    this.read(xs[Math.min(Math.max(to, 0), xs.length - 1)]);
  }

  // Show the values at x; a line that has not begun at x, or has ended, shows none.
  read(x, pointed = null) {
    const values = x === null || !this.plot?.span ? [] : this.lines
      .map((line, i) => ({ name: line.name, look: style(line, i), ...near(line.points, x) }))
      .filter(({ y }) => y !== undefined);
    Object.assign(this, { at: values.length ? x : null, pointed });
    const told = pointed === null || values.length <= READ ? values : values.toSorted(
      (a, b) => Math.abs(this.plot.y(a.y) - pointed) - Math.abs(this.plot.y(b.y) - pointed),
    );
    this.cursor?.replaceChildren(
      ...(values.length
        ? [
          s("line", {
            x1: this.plot.x(x),
            x2: this.plot.x(x),
            y1: this.plot.top,
            y2: this.plot.low,
            stroke: tint("soft"),
            "stroke-dasharray": "2 3",
          }),
          ...values.map(({ x: at, y, look }) =>
            s("circle", {
              cx: this.plot.x(at),
              cy: this.plot.y(y),
              r: 3.5,
              fill: look.stroke,
              stroke: tint("paper"),
            })
          ),
        ]
        : []),
    );
    this.note.replaceChildren(
      ...(values.length
        ? [
          h("span", {}, `${this.label} ${x.toLocaleString("en")}: `),
          ...told
            .slice(0, READ)
            .map(({ name, x: at, y, look }, i, { length }) =>
              h(
                "span",
                { class: "value" },
                this.named ? h("i", { class: "dot", style: { background: look.stroke } }) : null,
                `${this.named ? `${name} ` : ""}${number(y)}${
                  at === x ? "" : ` (${this.label} ${at.toLocaleString("en")})`
                }${i < length - 1 ? ", " : ""}`,
              )
            ),
          told.length > READ ? ` and ${told.length - READ} more` : "",
        ]
        : [" "]),
    );
    const xs = this.xs ?? [];
    for (
      const [name, value] of [
        ["valuemin", xs[0] ?? 0],
        ["valuemax", xs.at(-1) ?? 0],
        ["valuenow", this.at ?? xs.at(-1) ?? 0],
        ["valuetext", values.length ? this.note.textContent : "the arrow keys read the values"],
      ]
    ) {
      this.svgNode.setAttribute(`aria-${name}`, value);
    }
  }

  // The figure with its title and legend, to be saved.
  svg(wide = EXPORTED) {
    const head = s("g");
    const keys = legend(this);
    head.append(
      s(
        "text",
        { x: 0, y: 14, "font-size": 14, "font-weight": 600, fill: tint("ink") },
        this.title,
      ),
    );
    let x = 0;
    let y = 34;
    for (const [name, look] of keys) {
      const long = 26 + 0.56 * 12 * name.length + 16;
      if (x && x + long > wide) {
        x = 0;
        y += 17;
      }
      head.append(
        s("line", { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, "stroke-width": 3, ...look }),
        s("text", { x: x + 26, y, "font-size": 12, fill: tint("ink") }, name),
      );
      x += long;
    }
    if (meaning(this.lines)) {
      head.append(
        s(
          "text",
          { x: wide, y: 14, "text-anchor": "end", "font-size": 11.5, fill: tint("soft") },
          meaning(this.lines),
        ),
      );
    }
    const top = keys.length ? y + 8 : 22;
    return s(
      "svg",
      { width: wide, height: top + this.tall },
      head,
      s("g", { transform: `translate(0,${top})` }, plot(this, wide).parts),
    );
  }
}

const drawable = (y) => typeof y === "number" && Number.isFinite(y);

function style({ colour, dash }, i) {
  const dashes =
    DASHES[(dash ?? (colour === undefined ? Math.floor(i / LINES.length) : 0)) % DASHES.length];
  return {
    stroke: LINES[(colour ?? i) % LINES.length],
    ...(dashes ? { "stroke-dasharray": dashes } : {}),
  };
}

// The names of the lines with their looks; none if there are too many to tell apart.
const legend = ({ lines, named, dots }) =>
  named && !dots && lines.length <= TELLABLE
    ? lines.map((line, i) => [line.name, style(line, i)])
    : [];

// What is drawn of lines with many points.
function meaning(lines) {
  const many = Math.max(1, ...lines.map(({ points }) => grouped(points)));
  return many > 1 ? `means of ${many} records, and their range` : "";
}

// The axes and lines as SVG elements, and the functions from values to pixels.
function plot({ lines, log, tall, label, unit, title, limits, dots: only }, wide) {
  const ys = lines.flatMap(({ points }) => points.map(([, y]) => y)).filter(drawable);
  const soft = tint("soft");
  if (!ys.length) {
    return {
      parts: [
        s(
          "text",
          { x: wide / 2, y: tall / 2, "text-anchor": "middle", fill: soft, "font-size": 13 },
          "No values yet",
        ),
      ],
    };
  }
  const xs = lines.flatMap(({ points }) => points.filter(([, y]) => drawable(y)).map(([x]) => x));
  const axis = yAxis([...ys, ...(limits ?? [])], { log, unit });
  const f = axis.log ? Math.log : (y) => y;
  const names = axis.marks.map((y) => short(y, axis.marks));
  const left = 12 + 6.6 * Math.max(...names.map((name) => name.length));
  const right = wide - 18;
  const top = 26;
  const low = tall - 40;
  let [x0, x1] = spread(xs);
  const one = x0 === x1;
  if (one) [x0, x1] = [x0 - 1, x0 + 1];
  const x = (at) => left + ((at - x0) / (x1 - x0)) * (right - left);
  const y = (at) => low - ((f(at) - f(axis.low)) / (f(axis.high) - f(axis.low))) * (low - top);
  const axes = s(
    "g",
    { "font-size": 11.5, fill: soft },
    s("text", { x: 0, y: 13, class: "unit" }, unit || title),
    s(
      "text",
      { x: (left + right) / 2, y: tall - 6, "text-anchor": "middle", class: "label" },
      label,
    ),
  );
  for (const [i, at] of axis.marks.entries()) {
    axes.append(
      s("line", {
        x1: left,
        x2: right,
        y1: y(at),
        y2: y(at),
        stroke: tint(at === 0 ? "soft" : "hair"),
      }),
      s("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, names[i]),
    );
  }
  const marks = one ? [x0 + 1] : steps(
    x0,
    x1,
    Math.max(3, Math.min(6, Math.floor((right - left) / 80))),
    xs.every(Number.isInteger),
  ).marks;
  for (const at of marks) {
    const name = Math.abs(at) < 1e5 ? at.toLocaleString("en") : short(at, marks);
    const half = 3.3 * name.length;
    axes.append(
      s("line", { x1: x(at), x2: x(at), y1: low, y2: low + 4, stroke: soft }),
      s(
        "text",
        {
          x: Math.min(Math.max(x(at), half), wide - half),
          y: low + 17,
          "text-anchor": "middle",
          class: "mark",
        },
        name,
      ),
    );
  }
  const path = (points) =>
    points.map(([a, b], j) => `${j ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`).join("");
  const drawn = lines.map((line, i) => {
    const look = style(line, i);
    const same = lines.filter(({ points }) => points === line.points || equal(points, line.points));
    const parts = pieces(line.points);
    if (same.length > 1) {
      Object.assign(look, {
        "stroke-dasharray": `9 ${9 * (same.length - 1)}`,
        "stroke-dashoffset": -9 * same.indexOf(line),
      }); // lines that coincide alternate
    }
    const few = only || line.points.length <= MARKED;
    const dots = parts.flatMap((part) => (few || part.length === 1 ? part : []));
    return s(
      "g",
      { class: "line", "data-name": line.name, opacity: lines.length > 8 ? 0.8 : 1 },
      only ? null : s("path", {
        fill: "none",
        "stroke-width": lines.length > 12 ? 1.2 : 1.8,
        "stroke-linejoin": "round",
        ...look,
        d: parts.map((part) => path(grouped(part) > 1 ? means(part) : part)).join(""),
      }),
      parts
        .filter((part) => grouped(part) > 1)
        .map(means)
        .map((part) =>
          s("path", {
            class: "range",
            fill: look.stroke,
            opacity: 0.18,
            d: `${
              path([
                ...part.map(([a, , , top]) => [a, top]),
                ...part.map(([a, , least]) => [a, least]).reverse(),
              ])
            }Z`,
          })
        ),
      dots.map(([a, b]) =>
        s("circle", {
          cx: x(a).toFixed(1),
          cy: y(b).toFixed(1),
          r: few && !only && line.points.length > 1 ? 2.5 : 3.5,
          fill: look.stroke,
        })
      ),
    );
  });
  return { parts: [axes, ...drawn], x, y, top, low, span: [x0, x1, left, right] };
}

// The range, ticks and kind of the y axis. A share goes from 0 to 1; counts have whole ticks; other
// axes include 0 if it is near.
function yAxis(values, { log, unit }) {
  let [low, high] = spread(values);
  if (log && low > 0 && high / low > 20) return { log: true, ...decades(low, high) };
  const whole = values.every(Number.isInteger);
  if (high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high))) {
    [low, high] = [Math.min(low, 0), Math.max(high, 0)]; // one value
  }
  if (low === high) high = 1;
  if (unit.startsWith("share") && low >= 0 && high <= 1) [low, high] = [0, high > 0.5 ? 1 : high];
  if (low > 0 && (whole || low < 0.4 * high)) low = 0;
  if (high < 0 && high > 0.4 * low) high = 0;
  const { marks, step } = steps(low, high, 5, whole, true);
  return { log: false, low: marks[0], high: marks.at(-1), marks, step };
}

// At most about `most` ticks at round numbers; outer: those that enclose the range.
function steps(low, high, most, whole, outer = false) {
  const raw = (high - low) / most;
  const size = 10 ** Math.floor(Math.log10(raw));
  const round = [1, 2, 5, 10].find((x) => x * size >= raw * (1 - 1e-9)) * size;
  const step = whole ? Math.max(1, Math.round(round)) : round;
  const [first, last] = outer
    ? [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)]
    : [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return {
    step,
    marks: Array.from(
      { length: last - first + 1 },
      (_, i) => Number(((first + i) * step).toPrecision(12)) + 0,
    ),
  };
}

// Ticks of a logarithmic axis that enclose the range: 1 and 3 of each power of ten, or whole powers
// if there are many.
function decades(low, high) {
  const e0 = Math.floor(Math.log10(low) + 1e-9);
  const e1 = Math.ceil(Math.log10(high) - 1e-9);
  const every = Math.ceil((e1 - e0) / 6);
  let marks = [];
  if (Math.log10(high / low) > 3.2) {
    for (let e = e0; e < e1 + every; e += every) marks.push(10 ** e);
  } else {
    for (let e = e0; e <= e1; e++) marks.push(10 ** e, 3 * 10 ** e);
    marks = marks.filter((_, i) => !(marks[i + 1] <= low) && !(marks[i - 1] >= high));
  }
  marks = marks.map((y) => Number(y.toPrecision(1)));
  return { low: marks[0], high: marks.at(-1), marks };
}

function short(x, among) {
  const size = Math.max(...among.map(Math.abs));
  if (x === 0) return "0";
  if (size >= 1e6 && Math.abs(x) >= 1e3) {
    return Math.abs(x) >= 1e6 ? `${Number((x / 1e6).toPrecision(6))}M` : `${x / 1e3}k`;
  }
  if (size >= 1e4 && Math.abs(x) >= 1e3) return `${Number((x / 1e3).toPrecision(6))}k`;
  return (
    size < 1e-3 || Math.abs(x) < 1e-4 ? x.toExponential().replace("e-", "e−") : String(x)
  ).replace(/^-/, "−");
}

const spread = (list) =>
  list.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
export const equal = (a, b) =>
  a.length === b.length && a.every(([x, y], i) => x === b[i][0] && y === b[i][1]);

// The points of a line in pieces without missing values.
function pieces(points) {
  const found = [[]];
  for (const point of points) {
    if (drawable(point[1])) found.at(-1).push(point);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((part) => part.length);
}

// A line with many points as the means of every few neighbours, [[x, mean, least, greatest], ...].
function means(points) {
  const many = grouped(points);
  const found = [];
  for (let i = 0; many > 1 && i < points.length; i += many) {
    const some = points.slice(i, i + many);
    const ys = some.map(([, y]) => y);
    found.push([
      some[Math.floor(some.length / 2)][0],
      ys.reduce((sum, y) => sum + y, 0) / ys.length,
      ...spread(ys),
    ]);
  }
  return found;
}
const grouped = (points) => Math.ceil(points.length / POINTS);

// The point of a line that is nearest to x, if x is between its first and its last point.
function near(points, x) {
  const found = points.filter(([, y]) => drawable(y));
  if (!found.length || x < found[0][0] || x > found.at(-1)[0]) return {};
  const [at, y] = found.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  return { x: at, y };
}
