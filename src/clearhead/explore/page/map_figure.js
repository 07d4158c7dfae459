/**
 * What a heat map shows besides its cells: labels and axis titles; and the whole of it as an SVG.
 */

import { colour, css, tint } from "./colours.js";
import { s, spelt, visible } from "./dom.js";
import { scaleBar } from "./figure.js";

const LABEL = 11;
const LONGEST = 18; // pixels per label, and characters of one

export const short = (name) => {
  const text = name.trim() ? visible(name) : spelt(name);
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
};

// Round numbers between two ends, three to eight of them.
function ticks(low, high) {
  const size = 10 ** Math.floor(Math.log10(high - low));
  const step = Math.max(1, (high - low) / size > 4 ? size : size / 2);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x < high; x += step) found.push(Math.round(x));
  return found;
}

/**
 * The labels as { text, x, y, angle, at: "right" | "left" | "center", strong }, so that canvas and
 * SVG show the same.
 */
export function labels(map, box, across, down) {
  const [r0, r1, k0, k1] = map.window;
  const [row, key] = map.cursor ?? [map.emphasis, null];
  const found = [];
  const room = LABEL + 2;
  const every = (size) => Math.max(1, Math.ceil(room / size));
  // Every n-th label, where they would overlap otherwise; the chosen one always, in place of its
  // neighbours.
  const drawn = (i, first, chosen, size) =>
    i === chosen ||
    ((i - first) % every(size) === 0 && !(chosen !== null && Math.abs(i - chosen) * size < room));
  if (box.named) {
    for (let i = Math.ceil(r0); i < r1; i++) {
      if (!drawn(i, Math.ceil(r0), row, down)) continue;
      found.push({
        text: short(map.source.rows[i]),
        x: box.left - 6,
        y: box.top + (i + 0.5 - r0) * down,
        angle: 0,
        at: "right",
        strong: i === row,
        most: box.left - 8 - (map.axes[0] ? 18 : 0),
      });
    }
    for (let j = Math.ceil(k0); j < k1; j++) {
      if (!drawn(j, Math.ceil(k0), key, across / 1.3)) continue;
      found.push({
        text: short(map.source.keys[j]),
        x: box.left + (j + 0.5 - k0) * across,
        y: box.top - 6,
        angle: -45,
        at: "left",
        strong: j === key,
      });
    }
  } else {
    for (const i of ticks(r0, r1)) {
      found.push({
        text: i.toLocaleString(),
        x: box.left - 5,
        y: box.top + (i - r0) * down + 4,
        angle: 0,
        at: "right",
      });
    }
    let free = -Infinity; // where the label before ends
    for (const j of ticks(k0, k1)) {
      const text = j.toLocaleString();
      const x = box.left + (j - k0) * across;
      const half = 3.2 * text.length;
      if (x - half < free) continue;
      free = x + half + 8;
      found.push({ text, x, y: box.top - 9, angle: 0, at: "center" });
    }
  }
  const [rows, keys] = map.axes;
  if (keys) found.push({ text: keys, x: box.left, y: 8, angle: 0, at: "left", title: true });
  if (rows) {
    found.push({ text: rows, x: 8, y: box.top + box.height, angle: -90, at: "left", title: true });
  }
  return found;
}

/** The map as an SVG: one rectangle per cell, or an image of the cells if there are many. */
export function mapFigure(map) {
  const box = map.layout();
  const [r0, r1, k0, k1] = map.window;
  const down = box.height / (r1 - r0);
  const across = box.width / (k1 - k0);
  const root = s("svg", {
    width: Math.max(box.left + box.width + 70, 8.6 * map.title.length),
    height: box.top + box.height + 70,
    "font-size": 12,
  });
  root.append(
    s("text", { x: 0, y: 14, fill: tint("ink"), "font-size": 14, "font-weight": 600 }, map.title),
  );
  const g = s("g", { transform: "translate(0,28)" });
  const best = map.best() ?? map.layers[0];
  const [a, , d] = best.part;
  if (map.exact() && best.weights.length * best.weights[0].length <= 4096) {
    for (let i = Math.floor(r0); i < r1; i++) {
      for (let j = Math.floor(k0); j < k1; j++) {
        const x = best.weights[i - a]?.[j - d];
        if (x === undefined || x === null || Number.isNaN(x)) continue;
        const fill = css(
          colour(Math.sign(x) * Math.min(Math.abs(x) / map.most, 1) ** (map.soft() ? 0.5 : 1)),
        );
        g.append(
          s(
            "rect",
            {
              x: box.left + (j - k0) * across,
              y: box.top + (i - r0) * down,
              width: Math.max(across - 1, 0.5),
              height: Math.max(down - 1, 0.5),
              fill,
            },
            s(
              "title",
              {},
              `${visible(map.source.rows[i])} → ${visible(map.source.keys[j])}: ${x.toFixed(4)}`,
            ),
          ),
        );
      }
    }
  } else {
    g.append(
      s("image", {
        href: cells(map, box),
        x: box.left,
        y: box.top,
        width: box.width,
        height: box.height,
        preserveAspectRatio: "none",
      }),
    );
  }
  for (const { text, x, y, angle, at, title } of labels(map, box, across, down)) {
    g.append(
      s(
        "text",
        {
          transform: `translate(${x},${y + (angle ? 0 : 4)})${angle ? ` rotate(${angle})` : ""}`,
          "text-anchor": { right: "end", left: "start", center: "middle" }[at],
          fill: tint(title ? "ink" : "soft"),
        },
        text,
      ),
    );
  }
  const [low, high] = map.ends();
  g.append(
    scaleBar({
      x: box.left,
      y: box.top + box.height + 14,
      low,
      high,
      label: map.what,
      signed: map.signed,
      root: map.soft(),
    }),
  );
  root.append(g);
  return root;
}

// The visible cells as an image.
function cells(map, box) {
  const whole = document.createElement("canvas");
  const scale = map.canvas.width / box.room;
  const from = [box.left, box.top].map((x) => Math.round(x * scale));
  whole.width = Math.max(1, Math.round(box.width * scale));
  whole.height = Math.max(1, Math.round(box.height * scale));
  whole
    .getContext("2d")
    .drawImage(map.canvas, ...from, whole.width, whole.height, 0, 0, whole.width, whole.height);
  return whole.toDataURL();
}
