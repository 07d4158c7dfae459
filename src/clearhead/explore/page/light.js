/** Maps over an image as light: warm and bright where a number is large, dark where it is small. */

import { ImageMap } from "./image.js";

const SPREAD = 0.6; // standard deviation of the smoothing, in cells of the map
const DARK = 0.22;
const GLOW = 0.42;
// brightness where a map is smallest; share and colour of the light where it is largest
const LAMP = [255, 205, 90];
const FINE = 96; // pixels of an enlarged map on its longer side

// The share of each cell in each pixel along one axis: a Gaussian of their distance.
function blend(pixels, cells) {
  return Array.from({ length: pixels }, (_, i) => {
    const at = ((i + 0.5) * cells) / pixels - 0.5;
    const near = Math.min(Math.max(Math.round(at), 0), cells - 1);
    const least = (at - near) ** 2;
    const shares = Array.from(
      { length: cells },
      (_, j) => Math.exp((-0.5 * ((at - j) ** 2 - least)) / SPREAD ** 2),
    );
    const sum = shares.reduce((a, x) => a + x, 0);
    return shares.map((x) => x / sum);
  });
}

/** Rows of numbers, enlarged smoothly: { data, wide, tall }. */
export function smooth(values) {
  const ny = values.length;
  const nx = values[0].length;
  const scale = FINE / Math.max(ny, nx);
  const tall = Math.round(scale * ny);
  const wide = Math.round(scale * nx);
  const down = blend(tall, ny);
  const across = blend(wide, nx);
  const half = down.map((shares) =>
    Array.from(
      { length: nx },
      (_, x) => shares.reduce((sum, share, y) => sum + share * values[y][x], 0),
    )
  );
  const data = new Float32Array(tall * wide);
  half.forEach((row, y) =>
    across.forEach((shares, x) => {
      data[y * wide + x] = shares.reduce((sum, share, i) => sum + share * row[i], 0);
    })
  );
  return { data, wide, tall };
}

/** The smallest and the largest number of several maps: one scale for all of them. */
export function scaleOf(maps) {
  const [low, high] = maps
    .flat(2)
    .reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
  return high > low ? [low, high] : [0, high > 0 ? high : 1];
}

/** Draw an image, lit by a map; ends: the numbers that are dark and fully lit. */
export function light(c, image, values, [low, high], wide, tall, opacity = 1) {
  c.imageSmoothingEnabled = true;
  c.drawImage(image, 0, 0, wide, tall);
  const fine = smooth(values);
  const mask = new OffscreenCanvas(fine.wide, fine.tall);
  const m = mask.getContext("2d");
  const pixels = m.createImageData(fine.wide, fine.tall);
  fine.data.forEach((x, i) => {
    const share = Math.min(1, Math.max(0, (x - low) / (high - low)));
    const black = opacity * (1 - DARK) * (1 - share);
    const lamp = opacity * GLOW * share;
    const alpha = 1 - (1 - black) * (1 - lamp);
    pixels.data.set(
      [...LAMP.map((part) => (alpha ? (part * lamp) / alpha : 0)), Math.round(255 * alpha)],
      4 * i,
    );
  });
  m.putImageData(pixels, 0, 0);
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
    this.opacity = 1;
    this.blend.set(1);
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
