/**
 * What a heat map shows besides its cells: labels and axis titles; and the whole of it as an SVG.
 */

import { colour, css, tint } from "../colours.js";
import { s } from "../dom.js";
import { heading, scaleBar } from "../figures/sheet.js";
import { spelt, visible } from "../numbers.js";

const LABEL = 11; // pixels of a label
const LONGEST = 18; // characters of a label
const SEPARATE = 4096; // more cells than these are saved as an image
export const AXIS = 18; // pixels of the title of an axis

/** A token as a label. */
export function short(name) {
  const text = name.trim() ? visible(name) : spelt(name);
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}

// Round numbers between two ends, three to eight of them.
function positions(low, high) {
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
  const found = box.named ? names(map, box, across, down) : numbers(map, box, across, down);
  const [rows, keys] = map.axes;
  const title = { at: "left", title: true };
  if (keys) found.push({ text: keys, x: box.left, y: 8, angle: 0, ...title });
  if (rows) found.push({ text: rows, x: 8, y: box.top + box.height, angle: -90, ...title });
  return found;
}

// The names of tokens: every n-th, where they would overlap otherwise; the chosen one always, in
// place of its neighbours.
function names(map, box, across, down) {
  const [r0, r1, k0, k1] = map.window;
  const [row, key] = map.cursor ?? [map.emphasis, null];
  const room = LABEL + 2;
  const isDrawn = (i, first, chosen, size) => {
    if (i === chosen) return true;
    if (chosen !== null && Math.abs(i - chosen) * size < room) return false;
    const every = Math.max(1, Math.ceil(room / size));
    return (i - first) % every === 0;
  };
  const found = [];
  for (let i = Math.ceil(r0); i < r1; i++) {
    if (!isDrawn(i, Math.ceil(r0), row, down)) continue;
    found.push({
      text: short(map.source.rows[i]),
      x: box.left - 6,
      y: box.top + (i + 0.5 - r0) * down,
      angle: 0,
      at: "right",
      strong: i === row,
      most: box.left - 8 - (map.axes[0] ? AXIS : 0),
    });
  }
  for (let j = Math.ceil(k0); j < k1; j++) {
    if (!isDrawn(j, Math.ceil(k0), key, across / 1.3)) continue;
    found.push({
      text: short(map.source.keys[j]),
      x: box.left + (j + 0.5 - k0) * across,
      y: box.top - 6,
      angle: -45,
      at: "left",
      strong: j === key,
    });
  }
  return found;
}

// Positions of tokens, where there are too many for names.
function numbers(map, box, across, down) {
  const [r0, r1, k0, k1] = map.window;
  const found = positions(r0, r1).map((i) => {
    const y = box.top + (i - r0) * down + 4;
    return { text: i.toLocaleString(), x: box.left - 5, y, angle: 0, at: "right" };
  });
  let free = -Infinity; // where the label before ends
  for (const j of positions(k0, k1)) {
    const text = j.toLocaleString();
    const x = box.left + (j - k0) * across;
    const half = 3.2 * text.length;
    if (x - half < free) continue;
    free = x + half + 8;
    found.push({ text, x, y: box.top - 9, angle: 0, at: "center" });
  }
  return found;
}

/** The map as an SVG: one rectangle per cell, or an image of the cells if there are many. */
export function mapFigure(map) {
  const box = map.layout();
  const [r0, r1, k0, k1] = map.window;
  const down = box.height / (r1 - r0);
  const across = box.width / (k1 - k0);
  const body = s("g", { transform: "translate(0,28)" });
  const { weights } = map.best() ?? map.layers[0];
  if (map.exact() && weights.length * weights[0].length <= SEPARATE) {
    body.append(...cells(map, box, across, down));
  } else {
    const { left: x, top: y, width, height } = box;
    const href = visibleCells(map, box);
    body.append(s("image", { href, x, y, width, height, preserveAspectRatio: "none" }));
  }
  const anchors = { right: "end", left: "start", center: "middle" };
  for (const { text, x, y, angle, at, title } of labels(map, box, across, down)) {
    // text stands on its y; turned text hangs in its middle
    const transform = angle ? `translate(${x},${y}) rotate(${angle})` : `translate(${x},${y + 4})`;
    const look = { "text-anchor": anchors[at], fill: tint(title ? "ink" : "soft") };
    body.append(s("text", { transform, ...look }, text));
  }
  const [low, high] = map.ends();
  const place = { x: box.left, y: box.top + box.height + 14 };
  const scale = { low, high, label: map.what, signed: map.signed, root: map.soft() };
  body.append(scaleBar({ ...place, ...scale }));
  const width = Math.max(box.left + box.width + 70, 8.6 * map.title.length);
  const height = box.top + box.height + 70;
  return s("svg", { width, height, "font-size": 12 }, heading(map.title), body);
}

function cells(map, box, across, down) {
  const [r0, r1, k0, k1] = map.window;
  const { rows, keys } = map.source;
  const {
    part: [firstRow, , firstKey],
    weights,
  } = map.best();
  const power = map.soft() ? 0.5 : 1;
  const found = [];
  for (let i = Math.floor(r0); i < r1; i++) {
    for (let j = Math.floor(k0); j < k1; j++) {
      const x = weights[i - firstRow]?.[j - firstKey];
      if (x === undefined || x === null || Number.isNaN(x)) continue;
      const share = Math.min(Math.abs(x) / map.most, 1) ** power;
      const place = {
        x: box.left + (j - k0) * across,
        y: box.top + (i - r0) * down,
        width: Math.max(across - 1, 0.5),
        height: Math.max(down - 1, 0.5),
      };
      const title = `${visible(rows[i])} → ${visible(keys[j])}: ${x.toFixed(4)}`;
      const fill = css(colour(Math.sign(x) * share));
      found.push(s("rect", { ...place, fill }, s("title", {}, title)));
    }
  }
  return found;
}

// The visible cells as an image.
function visibleCells(map, box) {
  const canvas = document.createElement("canvas");
  const scale = map.canvas.width / box.room;
  const [x, y, wide, tall] = [box.left, box.top, box.width, box.height].map((size) =>
    Math.round(size * scale)
  );
  canvas.width = Math.max(1, wide);
  canvas.height = Math.max(1, tall);
  const { width, height } = canvas;
  canvas.getContext("2d").drawImage(map.canvas, x, y, width, height, 0, 0, width, height);
  return canvas.toDataURL();
}
