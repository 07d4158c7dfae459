/**
 * Saliency of an image: which pixels speak for a class, or against it, by one of several methods;
 * and the share of a region.
 */

import { Activity } from "./activity.js";
import { lines } from "./api.js";
import { tint } from "./colours.js";
import { h, number, percent } from "./dom.js";
import { ImageMap } from "./image.js";

export const SALIENCY = "saliency"; // what the view Classify calls it
// the share of pixels whose values are within the colours: a few outliers would hide all others
const STRONGEST = 0.995;
const STEPS = 16; // steps of the arrow keys per side of the image

/**
 * By name: a title; what its values are, in a sentence; attention: whether it is for models with
 * self-attention only
 */
export const METHODS = {
  "grad-cam": {
    title: "Grad-CAM",
    about: ({ layer }) =>
      `Where the features of ${layer} speak for the class, each channel weighted by its mean gradient; coarse, as the grid of that layer is.`,
  },
  integrated: {
    title: "integrated gradients",
    about: ({ completeness, change, options }) =>
      `The gradient, added up in ${options.steps} steps from an image of the mean colour to this one. All values should sum to the change of the score, ${
        number(change)
      }; they miss it by ${number(completeness)} (${
        percent(Math.abs(completeness / (change || 1)))
      }).`,
  },
  occlusion: {
    title: "occlusion",
    about: ({ options }) =>
      `How much the score falls when a window of ${options.patch} × ${options.patch} pixels is covered with the mean colour.`,
  },
  gradient: {
    title: "gradient",
    about: () =>
      "How much the score changes with each pixel: the size of the gradient, whatever its sign.",
  },
  smoothgrad: {
    title: "SmoothGrad",
    about: ({ options }) =>
      `The size of the gradient, mean of ${options.samples} copies of the image with noise.`,
  },
  "gradient-rollout": {
    title: "gradient-weighted rollout",
    attention: true,
    about: () =>
      "Attention through all layers, each head weighted by the gradient of the class (Chefer et al. 2021).",
  },
};

// An image with a number per pixel, on which a rectangle can be drawn: by dragging, or with the
// arrow keys.
class SaliencyMap extends ImageMap {
  // drew: called with the region [left, top, right, bottom] in pixels, or []
  constructor({ drew, ...options }) {
    super({ patchwise: true, ...options });
    Object.assign(this, { drew, region: [], signed: false, opacity: 0.9 });
    this.blend.set(0.9);
    this.root.classList.add("salient");
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.pull(event));
    this.canvas.addEventListener("pointerup", () => this.drop());
    this.canvas.addEventListener("pointercancel", () => this.drop());
  }

  get size2() {
    return [this.values[0].length, this.values.length];
  } // width and height in pixels

  ends() {
    const sizes = this.values
      .flat()
      .map(Math.abs)
      .sort((a, b) => a - b);
    const most = sizes[Math.floor(STRONGEST * (sizes.length - 1))] || sizes.at(-1) || 1;
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
    const [wide, tall] = this.size2;
    const clamp = (x, most) => Math.min(Math.max(Math.floor(x * most), 0), most - 1);
    const y = clamp((event.clientY - box.top) / box.height, tall);
    const x = clamp((event.clientX - box.left) / box.width, wide);
    const [y0, x0] = this.from;
    if (Math.abs(x - x0) + Math.abs(y - y0) < 2) return;
    this.mark([Math.min(x, x0), Math.min(y, y0), Math.max(x, x0) + 1, Math.max(y, y0) + 1]);
  }

  drop() {
    if (this.from) {
      this.from = null;
      this.drew(this.region);
    }
  }

  mark(region) {
    this.region = fitting(region, this.size2);
    this.draw();
    this.marked?.();
  }

  // A region in the middle, to be moved from there.
  middle() {
    const [wide, tall] = this.size2;
    this.set([
      Math.floor(wide / 4),
      Math.floor(tall / 4),
      Math.ceil((3 * wide) / 4),
      Math.ceil((3 * tall) / 4),
    ]);
  }
  set(region) {
    this.mark(region);
    this.drew(this.region);
  }

  key(event) {
    const move = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[
      event.key
    ];
    if (!this.values || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape" || event.key === "Delete") {
      if (this.region.length) {
        event.preventDefault();
        this.set([]);
      }
      return;
    }
    if (!move) return super.key(event);
    event.preventDefault();
    if (!this.region.length) return this.middle();
    const [wide, tall] = this.size2;
    const dx = move[0] * Math.max(1, Math.round(wide / STEPS));
    const dy = move[1] * Math.max(1, Math.round(tall / STEPS));
    const [left, top, right, low] = this.region;
    if (event.shiftKey) {
      return this.set([
        left,
        top,
        Math.min(wide, Math.max(left + 1, right + dx)),
        Math.min(tall, Math.max(top + 1, low + dy)),
      ]);
    }
    const x = Math.min(Math.max(dx, -left), wide - right);
    const y = Math.min(Math.max(dy, -top), tall - low);
    this.set([left + x, top + y, right + x, low + y]);
  }

  paint(c, wide, tall) {
    super.paint(c, wide, tall);
    if (!this.region.length) return;
    const [nx, ny] = this.size2;
    const [left, top, right, low] = this.region;
    const box = [
      (left * wide) / nx,
      (top * tall) / ny,
      ((right - left) * wide) / nx,
      ((low - top) * tall) / ny,
    ];
    c.lineWidth = 4;
    c.strokeStyle = tint("paper");
    c.strokeRect(...box);
    c.lineWidth = 2;
    c.strokeStyle = tint("mark");
    c.strokeRect(...box);
  }
}

// A region in whole pixels within the image; [] if it is none.
function fitting(region, [wide, tall]) {
  if (region.length !== 4 || !region.every(Number.isInteger)) return [];
  const [left, top, right, low] = region;
  return left >= 0 && top >= 0 && left < right && top < low && right <= wide && low <= tall
    ? [left, top, right, low]
    : [];
}

/**
 * The saliency of one class: asked for with progress, shown over the image, with what it means and
 * the share of a region.
 */
export class Explanation {
  // region: called with a region that was drawn, [left, top, right, bottom] in pixels, or [];
  // again: asks again, after Stop or a problem
  constructor({ region, again }) {
    this.activity = new Activity({ again });
    this.image = new SaliencyMap({ size: 340, drew: (box) => region(box) });
    this.image.marked = () => this.tell();
    this.about = h("p", { class: "note" });
    this.part = h("p", { class: "share", role: "status" });
    this.place = h(
      "button",
      {
        type: "button",
        onclick: () => {
          this.image.middle();
          this.image.canvas.focus();
        },
      },
      "Place a region",
    );
    this.remove = h(
      "button",
      {
        type: "button",
        onclick: () => {
          this.image.set([]);
          this.place.focus();
        },
      },
      "Remove it",
    );
    this.body = h(
      "div",
      {},
      this.about,
      h("div", { class: "row" }, this.place, this.remove),
      this.part,
      h(
        "p",
        { class: "note" },
        "Drag over the image to draw a region, or place one and move it with the arrow keys; with Shift they resize it, Escape removes it.",
      ),
    );
    this.panel = h("div", { class: "salience", hidden: true }, this.activity.root, this.body);
    this.root = this.image.root; // the image; the panel stands beside it
    this.root.hidden = true;
  }

  clear() {
    this.activity.cancel();
    this.activity.say("");
    this.root.hidden = this.panel.hidden = true;
    this.found = null;
  }

  // Ask for the saliency; null if it was stopped, or failed: the map of an earlier request then
  // goes.
  async ask(request) {
    let found = null;
    this.panel.hidden = false;
    this.body.hidden = true;
    this.root.classList.add("busy");
    await this.activity.run(`Explaining ${request.target}…`, async (signal, say) => {
      for await (const event of lines("saliency", request, signal)) {
        if (event.waiting) say(`${event.waiting} before you…`);
        if (event.progress) {
          say(`Explaining ${request.target}: ${event.progress[0]} of ${event.progress[1]}…`);
        }
        if (event.saliency) found = event.saliency;
      }
      say("");
    });
    // unless a later request has replaced it
    if (this.activity.state !== "working") this.root.classList.remove("busy");
    if (this.activity.state === "stopped" || this.activity.state === "failed") {
      this.root.hidden = true;
    }
    return found;
  }

  show(found, seen, region) {
    this.found = found;
    this.activity.cancel();
    this.activity.say("");
    this.root.classList.remove("busy");
    this.root.hidden = this.panel.hidden = this.body.hidden = false;
    this.image.signed = found.signed;
    this.image.call(
      `What speaks for ${found.target}: ${METHODS[found.method].title}`,
      found.signed ? "for (blue) or against (orange)" : "saliency",
    );
    this.image.region = fitting(region, [found.values[0].length, found.values.length]);
    this.image.show({ overlay: found.values, image: seen });
    this.tell();
  }

  // The region, its share of the saliency (absolute values), of what speaks for the class, and of
  // the image; null without one.
  share() {
    const { region, values } = this.image;
    if (!region.length || !this.found) return null;
    const [left, top, right, low] = region;
    const sums = { inside: 0, all: 0, forInside: 0, forAll: 0 };
    values.forEach((row, y) =>
      row.forEach((x, i) => {
        const within = y >= top && y < low && i >= left && i < right;
        sums.all += Math.abs(x);
        sums.forAll += Math.max(x, 0);
        if (within) {
          sums.inside += Math.abs(x);
          sums.forInside += Math.max(x, 0);
        }
      })
    );
    return {
      box: region,
      share: sums.all ? sums.inside / sums.all : null,
      positive: sums.forAll ? sums.forInside / sums.forAll : null,
      area: ((right - left) * (low - top)) / (values.length * values[0].length),
    };
  }

  told() {
    const share = this.share();
    const signed = this.found?.signed && share
      ? `, and ${percent(share.positive)} of what speaks for ${this.found.target}`
      : "";
    return share
      ? `The region holds ${percent(share.share)} of the saliency${signed}, on ${
        percent(share.area)
      } of the image.`
      : "";
  }

  tell() {
    this.part.textContent = this.told();
    this.remove.hidden = !this.image.region.length;
    this.image.root.classList.toggle("marked", this.image.region.length > 0);
    this.about.textContent = this.found ? METHODS[this.found.method].about(this.found) : "";
  }
}
