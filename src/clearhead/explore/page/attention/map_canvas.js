/** How a heat map is drawn on its canvas. */

import { colour, dark, tint } from "../colours.js";
import { paintPixels } from "../dom.js";
import { AXIS, labels, short } from "./map_figure.js";
import { fitted } from "./token_lines.js";

const FONT = "12px system-ui, sans-serif";
const LARGEST_CELL = 60; // pixels
const CLEAR = [0, 0, 0, 0]; // the colour of a cell without a number
export const NAMED = 80; // largest number of tokens per side whose names are drawn

/** Where the cells of a map are, in pixels: { left, top, width, height, named, room }. */
export function layoutOf(map) {
  const [r0, r1, k0, k1] = map.window;
  const { rows, keys } = map.source;
  const n = r1 - r0;
  const m = k1 - k0;
  const room = map.root.clientWidth || 600;
  const context = map.canvas.getContext("2d");
  context.font = FONT;
  const widest = (names) =>
    Math.max(0, ...names.map((name) => context.measureText(short(name)).width));
  const seen = (names, low, high) => names.slice(Math.floor(low), Math.ceil(high));
  const named = Math.max(n, m) <= NAMED;
  let left = 48;
  let top = 22;
  let right = 16;
  if (named) {
    // the names of columns are turned by 45 degrees, and the last one reaches beyond its column
    left = Math.min(widest(seen(rows, r0, r1)) + 10, room * 0.3);
    top = Math.min(widest(seen(keys, k0, k1)) * 0.75 + 16, 110);
    right = Math.min(widest(keys.slice(-1)) * 0.7, 60);
  }
  if (map.axes[0]) left += AXIS;
  if (map.axes[1]) top += AXIS;
  const across = room - left - right;
  const cell = Math.min(across / m, map.tall / n, LARGEST_CELL);
  const square = named || n === m;
  const width = square ? cell * m : Math.min(across, LARGEST_CELL * m);
  const height = square ? cell * n : map.tall;
  return {
    left,
    top,
    width: Math.max(width, 20),
    height: Math.min(height, map.tall * 1.4),
    named,
    room,
  };
}

/** Draw the visible cells, the names of rows and columns, and what is marked. */
export function drawMap(map) {
  const { box, canvas } = map;
  const [r0, r1, k0, k1] = map.window;
  const scale = devicePixelRatio || 1;
  const tall = box.top + box.height + 8;
  canvas.width = Math.round(box.room * scale);
  canvas.height = Math.round(tall * scale);
  canvas.style.setProperty("width", `${box.room}px`);
  canvas.style.setProperty("height", `${tall}px`);
  const c = canvas.getContext("2d");
  c.scale(scale, scale);
  c.font = FONT;
  const across = box.width / (k1 - k0);
  const down = box.height / (r1 - r0);
  drawCells(map, c, across, down);
  if (Math.min(across, down) > 14) drawGaps(map, c, across, down);
  drawNames(map, c, across, down);
  const emphasis = map.emphasis === null ? null : [map.emphasis, null];
  const marked = map.cursor ?? emphasis;
  if (marked) mark(map, c, across, down, marked);
}

// The overview first, which shows what finer parts do not cover yet.
function drawCells(map, c, across, down) {
  const { left, top, width, height } = map.box;
  const [r0, , k0] = map.window;
  c.fillStyle = tint("well");
  c.fillRect(left, top, width, height);
  c.save();
  c.beginPath();
  c.rect(left, top, width, height);
  c.clip();
  c.imageSmoothingEnabled = false;
  for (const layer of new Set([map.layers[0], map.best()])) {
    if (!layer) continue;
    const [row, rowsEnd, key, keysEnd] = layer.part;
    const x = left + (key - k0) * across;
    const y = top + (row - r0) * down;
    c.drawImage(picture(map, layer), x, y, (keysEnd - key) * across, (rowsEnd - row) * down);
  }
  c.restore();
}

// The cells of a loaded part as an image; made again for another theme or scale.
function picture(map, layer) {
  const key = `${map.most} ${dark()}`;
  if (layer.image && layer.key === key) return layer.image;
  const { weights } = layer;
  const columns = weights[0].length;
  // looking a colour up is much faster than computing it for each of up to a million cells
  const table = Array.from({ length: 511 }, (_, i) => [...colour((i - 255) / 255), 255]);
  const power = map.soft() ? 0.5 : 1;
  layer.key = key;
  layer.image = paintPixels(new OffscreenCanvas(columns, weights.length), (i) => {
    const x = weights[Math.floor(i / columns)][i % columns];
    if (x === null || Number.isNaN(x)) return CLEAR;
    const share = Math.min(Math.abs(x) / map.most, 1) ** power;
    return table[255 + Math.round(255 * share) * (x < 0 ? -1 : 1)];
  });
  return layer.image;
}
function drawGaps(map, c, across, down) {
  const { left, top, width, height } = map.box;
  const [r0, r1, k0, k1] = map.window;
  c.strokeStyle = tint("paper");
  c.lineWidth = 1.5;
  c.beginPath();
  for (let i = Math.ceil(r0); i <= r1; i++) {
    const y = top + (i - r0) * down;
    c.moveTo(left, y);
    c.lineTo(left + width, y);
  }
  for (let j = Math.ceil(k0); j <= k1; j++) {
    const x = left + (j - k0) * across;
    c.moveTo(x, top);
    c.lineTo(x, top + height);
  }
  c.stroke();
}

function drawNames(map, c, across, down) {
  c.textBaseline = "middle";
  for (const { text, x, y, angle, at, strong, most } of labels(map, map.box, across, down)) {
    c.save();
    c.translate(x, y);
    c.rotate((angle * Math.PI) / 180);
    c.textAlign = at;
    c.fillStyle = tint(strong ? "ink" : "soft");
    c.fillText(most ? fitted(text, most, c) : text, 0, 0);
    c.restore();
  }
}

function mark(map, c, across, down, [row, key]) {
  const { left, top, width, height } = map.box;
  const [r0, r1, k0, k1] = map.window;
  c.strokeStyle = tint("accent");
  c.lineWidth = 1.5;
  if (row !== null && row >= Math.floor(r0) && row < r1) {
    c.strokeRect(left, top + (row - r0) * down, width, Math.max(down, 1.5));
  }
  if (key !== null && key >= Math.floor(k0) && key < k1) {
    c.strokeRect(left + (key - k0) * across, top, Math.max(across, 1.5), height);
  }
}
