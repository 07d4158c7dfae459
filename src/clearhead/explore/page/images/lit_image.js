/** Maps over an image as light: warm and bright where a number is large, dark where it is small. */

import { paintPixels } from "../dom.js";
import { clamp, spread, total } from "../numbers.js";
import { ImageMap } from "./image_map.js";

const SPREAD = 0.6; // standard deviation of the smoothing, in cells of the map
const DARK = 0.22; // brightness where a map is smallest
const GLOW = 0.42; // share of the light where a map is largest
const LAMP = [255, 205, 90]; // its colour
const FINE = 96; // pixels of an enlarged map on its longer side

// The share of each cell in each pixel along one axis: a Gaussian of their distance.
function blend(pixels, cells) {
  return Array.from({ length: pixels }, (_, i) => {
    const at = ((i + 0.5) * cells) / pixels - 0.5;
    const near = clamp(Math.round(at), 0, cells - 1);
    const least = (at - near) ** 2; // subtracted, so that the largest power is 1
    const power = (_, j) => Math.exp((-0.5 * ((at - j) ** 2 - least)) / SPREAD ** 2);
    const shares = Array.from({ length: cells }, power);
    const sum = total(shares);
    return shares.map((x) => x / sum);
  });
}

/** Rows of numbers, enlarged smoothly: { data, wide, tall }. */
function smooth(values) {
  const rows = values.length;
  const columns = values[0].length;
  const scale = FINE / Math.max(rows, columns);
  const tall = Math.round(scale * rows);
  const wide = Math.round(scale * columns);
  const down = blend(tall, rows);
  const across = blend(wide, columns);
  // first down, then across: a Gaussian of two axes is the product of two
  const stretched = down.map((shares) =>
    values[0].map((_, x) => shares.reduce((sum, share, y) => sum + share * values[y][x], 0))
  );
  const data = new Float32Array(tall * wide);
  stretched.forEach((row, y) => {
    across.forEach((shares, x) => {
      data[y * wide + x] = shares.reduce((sum, share, i) => sum + share * row[i], 0);
    });
  });
  return { data, wide, tall };
}

/** The smallest and the largest number of several maps: one scale for all of them. */
export function scaleOf(maps) {
  const [low, high] = spread(maps.flat(2));
  if (high > low) return [low, high];
  return [0, high > 0 ? high : 1];
}

/** Draw an image, lit by a map; ends: the numbers that are dark and fully lit. */
export function light(c, image, values, [low, high], wide, tall, opacity = 1) {
  c.imageSmoothingEnabled = true;
  c.drawImage(image, 0, 0, wide, tall);
  const fine = smooth(values);
  const mask = paintPixels(new OffscreenCanvas(fine.wide, fine.tall), (i) => {
    const share = clamp((fine.data[i] - low) / (high - low), 0, 1);
    // a black layer and over it a layer of light, as one colour with the alpha of both
    const black = opacity * (1 - DARK) * (1 - share);
    const lamp = opacity * GLOW * share;
    const alpha = 1 - (1 - black) * (1 - lamp);
    const [r, g, b] = LAMP.map((part) => (alpha ? (part * lamp) / alpha : 0));
    return [r, g, b, Math.round(255 * alpha)];
  });
  c.drawImage(mask, 0, 0, wide, tall);
}

/** The colour of a grey image where a map is t of the way from dark to fully lit. */
export function shade(t) {
  const lit = 150 * (DARK + (1 - DARK) * t);
  return LAMP.map((part) => Math.round(lit + GLOW * t * (part - lit)));
}

/** An image that is lit by one of several maps, all on one scale. */
export class LitImage extends ImageMap {
  constructor(options) {
    super(options);
    this.fade(1);
    this.range = [0, 1];
  }

  ends() {
    return this.range;
  }

  shade(t) {
    return shade(t);
  }

  paint(c, wide, tall) {
    light(c, this.image, this.values, this.range, wide, tall, this.opacity);
  }
}
