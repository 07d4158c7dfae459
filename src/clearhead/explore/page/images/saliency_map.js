/** An image with a number per pixel, on which a rectangle can be drawn. */

import { tint } from "../colours.js";
import { ARROWS, modified } from "../dom.js";
import { clamp } from "../numbers.js";
import { ImageMap } from "./image_map.js";

// the share of pixels whose values are within the colours: a few outliers would hide all others
const STRONGEST = 0.995;
const STEPS = 16; // steps of the arrow keys per side of the image

/** A region is drawn by dragging, or with the arrow keys: [left, top, right, bottom] in pixels. */
export class SaliencyMap extends ImageMap {
  // drew: called with the region, or []
  constructor({ drew, ...options }) {
    super({ patchwise: true, ...options });
    Object.assign(this, { drew, region: [], signed: false });
    this.fade(0.9);
    this.root.classList.add("salient");
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.pull(event));
    this.canvas.addEventListener("pointerup", () => this.drop());
    this.canvas.addEventListener("pointercancel", () => this.drop());
  }

  // The width and the height in pixels.
  get pixels() {
    return [this.values[0].length, this.values.length];
  }

  ends() {
    const sizes = this.values
      .flat()
      .map(Math.abs)
      .sort((a, b) => a - b);
    const within = sizes[Math.floor(STRONGEST * (sizes.length - 1))];
    const most = within || sizes.at(-1) || 1;
    return [this.signed ? -most : 0, most];
  }

  choose() {} // a click chooses no pixel: dragging draws a region

  grab(event) {
    const at = event.button === 0 && this.place(event);
    if (!at) return;
    this.from = at;
    this.canvas.setPointerCapture(event.pointerId);
  }

  pull(event) {
    if (!this.from) return;
    const box = this.canvas.getBoundingClientRect();
    const [wide, tall] = this.pixels;
    const pixel = (share, most) => clamp(Math.floor(share * most), 0, most - 1);
    const y = pixel((event.clientY - box.top) / box.height, tall);
    const x = pixel((event.clientX - box.left) / box.width, wide);
    const [y0, x0] = this.from;
    if (Math.abs(x - x0) + Math.abs(y - y0) < 2) return;
    this.mark([Math.min(x, x0), Math.min(y, y0), Math.max(x, x0) + 1, Math.max(y, y0) + 1]);
  }

  drop() {
    if (!this.from) return;
    this.from = null;
    this.drew(this.region);
  }

  mark(region) {
    this.region = fitting(region, this.pixels);
    this.draw();
    this.marked?.();
  }

  // A region in the middle, to be moved from there.
  middle() {
    const [wide, tall] = this.pixels;
    const [left, top] = [wide / 4, tall / 4].map(Math.floor);
    const [right, low] = [(3 * wide) / 4, (3 * tall) / 4].map(Math.ceil);
    this.set([left, top, right, low]);
  }

  set(region) {
    this.mark(region);
    this.drew(this.region);
  }

  key(event) {
    if (!this.values || modified(event)) return;
    const remove = event.key === "Escape" || event.key === "Delete";
    const move = ARROWS[event.key];
    if (!remove && !move) return super.key(event);
    if (remove && !this.region.length) return;
    event.preventDefault();
    if (remove) return this.set([]);
    if (!this.region.length) return this.middle();
    const [wide, tall] = this.pixels;
    const dy = move[0] * Math.max(1, Math.round(tall / STEPS));
    const dx = move[1] * Math.max(1, Math.round(wide / STEPS));
    const [left, top, right, low] = this.region;
    if (event.shiftKey) {
      // resize: its left upper corner stays
      this.set([left, top, clamp(right + dx, left + 1, wide), clamp(low + dy, top + 1, tall)]);
      return;
    }
    const x = clamp(dx, -left, wide - right);
    const y = clamp(dy, -top, tall - low);
    this.set([left + x, top + y, right + x, low + y]);
  }

  paint(c, wide, tall) {
    super.paint(c, wide, tall);
    if (!this.region.length) return;
    const [columns, rows] = this.pixels;
    const [left, top, right, low] = this.region;
    const across = wide / columns;
    const down = tall / rows;
    const box = [left * across, top * down, (right - left) * across, (low - top) * down];
    // two lines: one of them is seen on any image
    for (
      const [width, name] of [
        [4, "paper"],
        [2, "mark"],
      ]
    ) {
      c.lineWidth = width;
      c.strokeStyle = tint(name);
      c.strokeRect(...box);
    }
  }
}

/** A region in whole pixels within the image; [] if it is none. */
export function fitting(region, [wide, tall]) {
  if (region.length !== 4 || !region.every(Number.isInteger)) return [];
  const [left, top, right, low] = region;
  const across = left >= 0 && left < right && right <= wide;
  const down = top >= 0 && top < low && low <= tall;
  return across && down ? region : [];
}
