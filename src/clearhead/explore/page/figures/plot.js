/** The axes and lines of a plot as SVG elements. */

import { LINES, tint } from "../colours.js";
import { s } from "../dom.js";
import { clamp, spread } from "../numbers.js";
import { tickName, ticks, yAxis } from "./axes.js";

const DASHES = [null, "7 3", "2 3"]; // lines beyond the number of colours repeat them with these
const TELLABLE = LINES.length * DASHES.length; // lines that a legend can tell apart
const MARKED = 16; // the largest number of points of a line that shows each as a dot
// drawn points per line; of more, the means of neighbours are drawn, and the range of their values
const POINTS = 400;

/** Whether a value is a number that a plot can show. */
export const drawable = (y) => typeof y === "number" && Number.isFinite(y);

/** The colour and the dashes of a line: its own, or those of its number. */
export function lineStyle({ colour, dash }, i) {
  const round = colour === undefined ? Math.floor(i / LINES.length) : 0; // of the colours
  const dashes = DASHES[(dash ?? round) % DASHES.length];
  const stroke = LINES[(colour ?? i) % LINES.length];
  return dashes ? { stroke, "stroke-dasharray": dashes } : { stroke };
}

/** The names of the lines with their looks; none if there are too many to tell apart. */
export function legend({ lines, named, dots }) {
  if (!named || dots || lines.length > TELLABLE) return [];
  return lines.map((line, i) => [line.name, lineStyle(line, i)]);
}

/** What is drawn of lines with many points, in words. */
export function meaning(lines) {
  const many = Math.max(1, ...lines.map(({ points }) => grouped(points)));
  return many > 1 ? `means of ${many} records, and their range` : "";
}

/** Whether two lists of points are the same. */
export const equal = (a, b) =>
  a.length === b.length && a.every(([x, y], i) => x === b[i][0] && y === b[i][1]);

/** The point of a line that is nearest to x, if x is between its first and its last point. */
export function near(points, x) {
  const found = points.filter(([, y]) => drawable(y));
  if (!found.length || x < found[0][0] || x > found.at(-1)[0]) return {};
  const [at, y] = found.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  return { x: at, y };
}

/**
 * The parts of a plot, and what reads it: the functions x and y from values to pixels, `top` and
 * `low` of the area, and `span`: [least x, greatest x, left, right].
 */
export function plot({ lines, log, tall, label, unit, title, limits, dots }, wide) {
  const all = lines.flatMap(({ points }) => points.filter(([, y]) => drawable(y)));
  if (!all.length) return { parts: [nothing(wide, tall)] };
  const xs = all.map(([x]) => x);
  const axis = yAxis([...all.map(([, y]) => y), ...(limits ?? [])], { log, unit });
  const scale = axis.log ? Math.log : (y) => y;
  const names = axis.marks.map((y) => tickName(y, axis.marks));
  const left = 12 + 6.6 * Math.max(...names.map((name) => name.length));
  const right = wide - 18;
  const top = 26;
  const low = tall - 40;
  let [x0, x1] = spread(xs);
  const single = x0 === x1;
  if (single) [x0, x1] = [x0 - 1, x0 + 1];
  const x = (at) => left + ((at - x0) / (x1 - x0)) * (right - left);
  const y = (at) => {
    const share = (scale(at) - scale(axis.low)) / (scale(axis.high) - scale(axis.low));
    return low - share * (low - top);
  };
  const most = clamp(Math.floor((right - left) / 80), 3, 6);
  const marks = single ? [x0 + 1] : ticks(x0, x1, most, xs.every(Number.isInteger)).marks;
  const area = { x, y, top, low, left, right, wide, tall };
  const axes = s("g", { "font-size": 11.5, fill: tint("soft") });
  axes.append(...axisTitles(area, label, unit || title));
  axis.marks.forEach((at, i) => axes.append(...gridLine(area, at, names[i])));
  for (const at of marks) axes.append(...xTick(area, at, marks));
  const drawn = lines.map((line, i) => lineParts(area, lines, line, i, dots));
  return { parts: [axes, ...drawn], x, y, top, low, span: [x0, x1, left, right] };
}

function nothing(wide, tall) {
  const place = { x: wide / 2, y: tall / 2, "text-anchor": "middle" };
  return s("text", { ...place, fill: tint("soft"), "font-size": 13 }, "No values yet");
}

function axisTitles({ left, right, tall }, label, unit) {
  const below = { x: (left + right) / 2, y: tall - 6, "text-anchor": "middle", class: "label" };
  return [s("text", { x: 0, y: 13, class: "unit" }, unit), s("text", below, label)];
}

function gridLine({ y, left, right }, at, name) {
  const stroke = tint(at === 0 ? "soft" : "hair");
  return [
    s("line", { x1: left, x2: right, y1: y(at), y2: y(at), stroke }),
    s("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, name),
  ];
}

function xTick({ x, low, wide }, at, marks) {
  const name = Math.abs(at) < 1e5 ? at.toLocaleString("en") : tickName(at, marks);
  const half = 3.3 * name.length; // of its width: the name stays inside the figure
  const place = { x: clamp(x(at), half, wide - half), y: low + 17, "text-anchor": "middle" };
  return [
    s("line", { x1: x(at), x2: x(at), y1: low, y2: low + 4, stroke: tint("soft") }),
    s("text", { ...place, class: "mark" }, name),
  ];
}

// One line: its path, the range of its values where they are means, and its points as dots.
function lineParts({ x, y }, lines, line, i, dotsOnly) {
  const look = lineStyle(line, i);
  const path = (points) => {
    const steps = points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`);
    return `M${steps.join("L")}`;
  };
  const same = lines.filter(({ points }) => points === line.points || equal(points, line.points));
  if (same.length > 1) {
    // lines that coincide alternate
    look["stroke-dasharray"] = `9 ${9 * (same.length - 1)}`;
    look["stroke-dashoffset"] = -9 * same.indexOf(line);
  }
  const parts = pieces(line.points);
  const many = parts.filter((part) => grouped(part) > 1);
  const curve = s("path", {
    fill: "none",
    "stroke-width": lines.length > 12 ? 1.2 : 1.8,
    "stroke-linejoin": "round",
    ...look,
    d: parts.map((part) => path(grouped(part) > 1 ? means(part) : part)).join(""),
  });
  const ranges = many.map(means).map((part) => {
    const upper = part.map(([a, , , greatest]) => [a, greatest]);
    const lower = part.map(([a, , least]) => [a, least]).reverse();
    const d = `${path([...upper, ...lower])}Z`;
    return s("path", { class: "range", fill: look.stroke, opacity: 0.18, d });
  });
  const few = dotsOnly || line.points.length <= MARKED;
  const marked = parts.flatMap((part) => (few || part.length === 1 ? part : []));
  const r = few && !dotsOnly && line.points.length > 1 ? 2.5 : 3.5;
  const dots = marked.map(([a, b]) =>
    s("circle", { cx: x(a).toFixed(1), cy: y(b).toFixed(1), r, fill: look.stroke })
  );
  const opacity = lines.length > 8 ? 0.8 : 1;
  const own = { class: "line", "data-name": line.name, opacity };
  return s("g", own, dotsOnly ? null : curve, ranges, dots);
}

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
