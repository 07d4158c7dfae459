/** The grid of all layers and heads as a figure to save. */

import { css, tint } from "../colours.js";
import { s } from "../dom.js";
import { heading, scaleBar } from "../figures/sheet.js";
import { number } from "../numbers.js";
import { CELL, SMALL } from "./head_grid.js";

const LEFT = 60;
const TOP = 50;

/** An SVG of a HeadGrid: its small maps, or its colours, with their scale. */
export function headFigure(grid) {
  const small = grid.colouring === "map";
  const size = small ? SMALL : CELL;
  const root = s(
    "svg",
    {
      width: Math.max(LEFT + grid.heads * size + 8, 440),
      height: TOP + grid.layers * size + 40,
      "font-size": 11,
      fill: tint("soft"),
    },
    heading(small ? "Attention maps of every head" : `Heads by ${grid.shown[1]}`),
    s("text", { x: LEFT, y: 30 }, "head"),
    s("text", { x: 0, y: TOP + 12 }, "layer"),
  );
  for (let head = 0; head < grid.heads; head++) {
    const place = { x: LEFT + (head + 0.5) * size, y: TOP - 5, "text-anchor": "middle" };
    root.append(s("text", place, head));
  }
  for (let layer = 0; layer < grid.layers; layer++) {
    const place = { x: LEFT - 8, y: TOP + (layer + 0.5) * size + 4, "text-anchor": "end" };
    root.append(s("text", place, layer));
    for (let head = 0; head < grid.heads; head++) {
      const x = LEFT + head * size;
      const y = TOP + layer * size;
      root.append(...cellParts(grid, layer, head, { x, y, width: size - 2, height: size - 2 }));
    }
  }
  const scale = scaleInForce(grid);
  if (scale) root.append(scaleBar({ x: LEFT, y: TOP + grid.layers * size + 12, ...scale }));
  return root;
}

function cellParts(grid, layer, head, place) {
  const parts = [];
  const frame = (stroke, width = 1) =>
    s("rect", { ...place, fill: "none", stroke: tint(stroke), "stroke-width": width });
  const value = grid.value(layer, head);
  if (grid.silenced(layer, head)) {
    const middle = { x: place.x + place.width / 2, y: place.y + place.height / 2 + 4 };
    const look = { "text-anchor": "middle", fill: tint("mark") };
    parts.push(frame("mark"), s("text", { ...middle, ...look }, "×"));
  } else if (grid.colouring === "map" && grid.maps) {
    const href = grid.thumbnail(layer, head).toDataURL();
    const pixels = { preserveAspectRatio: "none", "image-rendering": "pixelated" };
    parts.push(frame("hair"), s("image", { ...place, href, ...pixels }));
  } else if (value !== null) {
    const title = s("title", {}, grid.title(layer, head));
    parts.push(s("rect", { ...place, rx: 4, fill: css(grid.shade(value)) }, title));
  }
  const [row, column] = grid.at;
  if (row === layer && column === head) parts.push(frame("accent", 2.5));
  return parts;
}

// The colour scale in force; null if nothing is coloured yet.
function scaleInForce(grid) {
  if (grid.colouring !== "map") {
    const range = grid.range();
    if (!range) return null;
    const [low, high] = range.map(number);
    return { low, high, label: grid.shown[2], signed: grid.signed };
  }
  if (!grid.maps) return null;
  const means = grid.pooled ? `, mean of up to ${grid.pooled.join(" x ")}` : "";
  const high = grid.own ? "own largest" : number(grid.most);
  return { low: "0", high, label: `attention weight${means}`, root: true };
}
