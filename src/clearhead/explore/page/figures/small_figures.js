/**
 * Small figures for saved sheets: bars of probabilities, a table of texts, and a text with a number
 * per token.
 */

import { colour, css, ink, tint } from "../colours.js";
import { s } from "../dom.js";
import { number, percent, spread } from "../numbers.js";
import { heading, scaleBar } from "./sheet.js";

const LINE = 24; // pixels per row of bars
const BAR = 260; // pixels of a bar of 100 %

const room = (text) => Math.ceil(8.6 * text.length); // pixels that a title needs

/** rows: [name, share, another share?]; keys: what the shares are, each on a line of its own */
export function barsFigure(text, rows, keys) {
  const two = rows.some((row) => row.length > 2);
  const low = 30 + LINE * rows.length;
  const used = keys.slice(0, two ? 2 : 1);
  const size = { width: Math.max(420, room(text)), height: low + 6 + 18 * used.length };
  const root = s("svg", { ...size, "font-size": 12 }, heading(text));
  const bar = (k, place) =>
    s("rect", { ...place, fill: tint(k ? "mark" : "accent"), opacity: 0.35 });
  rows.forEach(([name, ...shares], i) => {
    const y = 26 + LINE * i;
    shares.forEach((share, k) => {
      const width = Math.max(0.5, BAR * share);
      const place = { x: 320 + 90 * k, y: y + 14, "text-anchor": "end", fill: tint("ink") };
      root.append(
        bar(k, { x: 0, y: y + k * 11, width, height: two ? 10 : 20 }),
        s("text", place, percent(share)),
      );
    });
    const place = { x: 6, y: y + 14, "font-family": "monospace", fill: tint("ink") };
    root.append(s("text", place, name));
  });
  used.forEach((key, k) => {
    const y = low + 18 * k;
    root.append(
      bar(k, { x: 0, y, width: 14, height: 9 }),
      s("text", { x: 20, y: y + 9, fill: tint("soft") }, key),
    );
  });
  return root;
}

/** rows of texts; the first of each row is its name */
export function tableFigure(text, rows) {
  const columns = Math.max(...rows.map((row) => row.length));
  const root = s("svg", { height: 34 + 20 * rows.length, "font-size": 12 }, heading(text));
  let x = 0;
  for (let j = 0; j < columns; j++) {
    const look = j ? { fill: tint("ink"), "font-family": "monospace" } : { fill: tint("soft") };
    rows.forEach((row, i) => {
      root.append(s("text", { x, y: 38 + 20 * i, ...look }, row[j] ?? ""));
    });
    x += Math.max(...rows.map((row) => 7.2 * (row[j]?.length ?? 0))) + 16;
  }
  root.setAttribute("width", Math.max(x, room(text)));
  return root;
}

/** tokens with a number each, coloured by it */
export function textFigure(text, tokens, values, unit) {
  const wide = 620;
  const most = spread(values.map(Math.abs))[1] || 1;
  const root = s("svg", { width: Math.max(wide, room(text)), "font-size": 13 }, heading(text));
  let x = 0;
  let y = 26;
  const newLine = () => {
    x = 0;
    y += 26;
  };
  tokens.forEach((token, i) => {
    const shown = token.replace(/\n/g, "⏎");
    const size = 7.6 * shown.length + 4;
    const fill = colour((values[i] / most) * 0.9);
    if (x + size > wide) newLine();
    const look = { fill: ink(fill), "font-family": "monospace", "xml:space": "preserve" };
    root.append(
      s(
        "rect",
        { x, y, width: size - 1, height: 22, rx: 3, fill: css(fill) },
        s("title", {}, `${token}: ${number(values[i])} ${unit}`),
      ),
      s("text", { x: x + 2, y: y + 15, ...look }, shown),
    );
    x += size;
    if (token.endsWith("\n")) newLine();
  });
  const ends = { low: number(-most), high: number(most) };
  root.append(scaleBar({ x: 0, y: y + 34, ...ends, label: unit, signed: true }));
  root.setAttribute("height", y + 64);
  return root;
}
