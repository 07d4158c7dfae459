/**
 * Small figures for saved sheets: bars of probabilities, a table of texts, and a text with a number
 * per token.
 */

import { colour, css, ink, tint } from "./colours.js";
import { number, percent, s } from "./dom.js";
import { scaleBar } from "./figure.js";

const room = (text) => Math.ceil(8.6 * text.length); // pixels that a title needs
const title = (text) =>
  s("text", { y: 14, "font-size": 14, "font-weight": 600, fill: tint("ink") }, text);

/** rows: [name, share, another share?]; keys: what the shares are, each on a line of its own */
export function barsFigure(text, rows, keys) {
  const wide = 420;
  const line = 24;
  const two = rows.some((row) => row.length > 2);
  const root = s(
    "svg",
    {
      width: Math.max(wide, room(text)),
      height: 30 + line * rows.length + 6 + 18 * (two ? 2 : 1),
      "font-size": 12,
    },
    title(text),
  );
  rows.forEach(([name, ...shares], i) => {
    const y = 26 + line * i;
    shares.forEach((share, k) =>
      root.append(
        s("rect", {
          x: 0,
          y: y + k * 11,
          width: Math.max(0.5, 260 * share),
          height: two ? 10 : 20,
          fill: tint(k ? "mark" : "accent"),
          opacity: 0.35,
        }),
        s(
          "text",
          { x: 320 + 90 * k, y: y + 14, "text-anchor": "end", fill: tint("ink") },
          percent(share),
        ),
      )
    );
    root.append(
      s("text", { x: 6, y: y + 14, "font-family": "monospace", fill: tint("ink") }, name),
    );
  });
  keys
    .slice(0, two ? 2 : 1)
    .forEach((key, k) =>
      root.append(
        s("rect", {
          x: 0,
          y: 30 + line * rows.length + 18 * k,
          width: 14,
          height: 9,
          fill: tint(k ? "mark" : "accent"),
          opacity: 0.35,
        }),
        s("text", { x: 20, y: 39 + line * rows.length + 18 * k, fill: tint("soft") }, key),
      )
    );
  return root;
}

/** rows of texts; the first of each row is its name */
export function tableFigure(text, rows) {
  const columns = Math.max(...rows.map((row) => row.length));
  const wide = (j) => Math.max(...rows.map((row) => 7.2 * (row[j]?.length ?? 0))) + 16;
  const root = s("svg", { height: 34 + 20 * rows.length, "font-size": 12 }, title(text));
  let x = 0;
  for (let j = 0; j < columns; j++) {
    rows.forEach((row, i) =>
      root.append(
        s(
          "text",
          {
            x,
            y: 38 + 20 * i,
            fill: tint(j ? "ink" : "soft"),
            "font-family": j ? "monospace" : null,
          },
          row[j] ?? "",
        ),
      )
    );
    x += wide(j);
  }
  root.setAttribute("width", Math.max(x, room(text)));
  return root;
}

/** tokens with a number each, coloured by it */
export function textFigure(text, tokens, values, unit) {
  const wide = 620;
  const most = values.reduce((a, x) => Math.max(a, Math.abs(x)), 0) || 1;
  const root = s("svg", { width: Math.max(wide, room(text)), "font-size": 13 }, title(text));
  let x = 0;
  let y = 26;
  tokens.forEach((token, i) => {
    const shown = token.replace(/\n/g, "⏎");
    const size = 7.6 * shown.length + 4;
    const fill = colour((values[i] / most) * 0.9);
    if (x + size > wide) {
      x = 0;
      y += 26;
    }
    root.append(
      s(
        "rect",
        { x, y, width: size - 1, height: 22, rx: 3, fill: css(fill) },
        s("title", {}, `${token}: ${number(values[i])} ${unit}`),
      ),
      s(
        "text",
        {
          x: x + 2,
          y: y + 15,
          fill: ink(fill),
          "font-family": "monospace",
          "xml:space": "preserve",
        },
        shown,
      ),
    );
    x += size;
    if (token.endsWith("\n")) {
      x = 0;
      y += 26;
    }
  });
  root.append(
    scaleBar({
      x: 0,
      y: y + 34,
      low: number(-most),
      high: number(most),
      label: unit,
      signed: true,
    }),
  );
  root.setAttribute("height", y + 64);
  return root;
}
