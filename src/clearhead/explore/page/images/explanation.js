/**
 * Saliency of an image: which pixels speak for a class, or against it, by one of several methods;
 * and the share of a region.
 */

import { Activity } from "../activity.js";
import { lines } from "../api.js";
import { button } from "../controls.js";
import { h } from "../dom.js";
import { number, percent, total } from "../numbers.js";
import { fitting, SaliencyMap } from "./saliency_map.js";

export const SALIENCY = "saliency"; // what the view Classify calls it

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
        number(
          change,
        )
      }; they miss it by ${number(completeness)} (${
        percent(
          Math.abs(completeness / (change || 1)),
        )
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
    this.place = button("Place a region", () => {
      this.image.middle();
      this.image.canvas.focus();
    });
    this.remove = button("Remove it", () => {
      this.image.set([]);
      this.place.focus();
    });
    const how =
      "Drag over the image to draw a region, or place one and move it with the arrow keys; with Shift they resize it, Escape removes it.";
    this.body = h(
      "div",
      {},
      this.about,
      h("div", { class: "row" }, this.place, this.remove),
      this.part,
      h("p", { class: "note" }, how),
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
    const title = `What speaks for ${found.target}: ${METHODS[found.method].title}`;
    this.image.call(title, found.signed ? "for (blue) or against (orange)" : "saliency");
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
    const inside = values.slice(top, low).flatMap((row) => row.slice(left, right));
    const all = values.flat();
    const ratio = (f) => {
      const whole = total(all.map(f));
      return whole ? total(inside.map(f)) / whole : null;
    };
    return {
      box: region,
      share: ratio(Math.abs),
      positive: ratio((x) => Math.max(x, 0)),
      area: inside.length / all.length,
    };
  }

  told() {
    const found = this.share();
    if (!found) return "";
    const share = `${percent(found.share)} of the saliency`;
    const positive = `, and ${percent(found.positive)} of what speaks for ${this.found.target}`;
    const area = `${percent(found.area)} of the image`;
    return `The region holds ${share}${this.found.signed ? positive : ""}, on ${area}.`;
  }

  tell() {
    this.part.textContent = this.told();
    this.remove.hidden = !this.image.region.length;
    this.image.root.classList.toggle("marked", this.image.region.length > 0);
    this.about.textContent = this.found ? METHODS[this.found.method].about(this.found) : "";
  }
}
