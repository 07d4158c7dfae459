/**
 * Compare: two models of images on the same photographs: similarity of their layers, attention
 * distance, receptive fields.
 */

import { Activity } from "../activity.js";
import { lines } from "../api.js";
import { FieldStrip } from "../compare/field_strip.js";
import { SimilarityGrid } from "../compare/similarity_grid.js";
import { choose } from "../controls.js";
import { h } from "../dom.js";
import { Curves } from "../figures/curves.js";
import { notes, part } from "../figures/sheet.js";
import { grouped } from "../panes/model_menu.js";
import { View } from "../panes/view.js";

const USUAL = ["vit-cifar10", "resnet-cifar10"]; // the example, if both are here
const KEPT = 8; // results that Back and Forward show without asking the server again
const ALIKE =
  "CKA is 1 if two layers tell the same inputs apart in the same way, whatever their width, and 0 if they have nothing in common.";
const FAR =
  "How far away the patches are that a head attends to, one dot per head: the mean distance in the grid, without the class token, as a share of the image's width. A head that attends to all patches alike has about 0.52.";
const WIDE =
  "The pixels that the unit in the middle of each layer depends on: the mean size of the gradient (colours: square root, each picture from 0 to its own largest value). The solid square holds 90 % of it, around its centre of gravity; a dashed one is all that a convolution can see, where that is less than the image.";
const NONE =
  "There is no vision model here: start the explorer with the folder of one, for instance DINOv2's: clearhead explore path/to/dinov2";

// A part of the view, with a sentence about its figures.
const section = (title, about, ...figures) =>
  h(
    "section",
    { class: "comparison", hidden: true },
    h("h2", {}, title),
    h("p", { class: "about" }, about),
    ...figures,
  );

export class Compare extends View {
  constructor(frame) {
    super(
      frame,
      "compare",
      "Compare",
      "Two models of images on the same photographs: which of their layers are alike, how far their heads attend, and how much of the image each layer depends on.",
    );
    Object.assign(this, { chosen: { model: "", other: "" }, results: new Map(), shown: null });
    this.activity = new Activity({ again: () => this.again() });
    this.form = h("div", { class: "row" });
    this.grids = ["first", "between", "second"].map(() => new SimilarityGrid());
    const unit = "distance, as a share of the image's width";
    this.dots = [0, 1].map(() => new Curves({ dots: true, tall: 220, label: "layer", unit }));
    this.without = [0, 1].map(() => h("p", { class: "note" }));
    this.sides = new Curves({
      title: "Size of the field by depth",
      tall: 220,
      label: "depth (0: first layer, 1: last)",
      unit: "share of the image's width",
    });
    this.strips = [new FieldStrip(), new FieldStrip()];
    this.counted = h("p", { class: "remark" });
    const titles =
      "The titles say whether layers are compared within one model or between two; first layers at the bottom left.";
    const grids = h(
      "div",
      { class: "grids" },
      this.grids.map(({ root }) => root),
    );
    const similarity = "Similarity of layers (CKA)";
    this.alike = section(similarity, `${ALIKE} ${titles}`, this.counted, grids);
    const plots = this.dots.map(({ root }, i) => h("div", {}, root, this.without[i]));
    this.far = section("Attention distance", FAR, h("div", { class: "pairs" }, plots));
    const strips = this.strips.map(({ root }) => root);
    this.wide = section("Receptive fields", WIDE, this.sides.root, strips);
    const asked = h("div", { class: "ask" }, this.form);
    this.root.append(asked, this.activity.root, this.alike, this.far, this.wide);
  }

  async enter(given) {
    if (!Object.keys(given).length && this.shown) return this.remember();
    const mine = (this.entering = {});
    try {
      await this.offer(given);
    } catch (trouble) {
      if (this.entering !== mine) return;
      this.clear();
      this.refused = given; // its models could not be listed
      this.activity.fail(trouble);
      return;
    }
    if (this.entering !== mine) return;
    if (!this.known.length) return this.activity.say(NONE);
    await this.run(false);
  }

  // List the models that read images, and choose those of the address.
  async offer({ model = this.chosen.model, other = this.chosen.other }) {
    const first = await this.frame.known("classify", model);
    const second = await this.frame.known("classify", other);
    const all = new Map([...first, ...second].map((known) => [known.id, known]));
    this.known = [...all.values()];
    const [one, two] = [this.known[0]?.id ?? "", (this.known[1] ?? this.known[0])?.id ?? ""];
    const usual = USUAL.every((id) => all.has(id)) ? USUAL : [one, two];
    this.chosen = { model: model || usual[0], other: other || usual[1] };
    this.controls();
  }

  controls() {
    const list = grouped(this.known);
    const pick = (key) => (id) => {
      this.chosen[key] = id;
      this.run();
    };
    this.form.replaceChildren(
      choose("first model", list, this.chosen.model, pick("model"), { name: "model" }),
      choose("second model", list, this.chosen.other, pick("other"), { name: "other" }),
    );
  }

  again() {
    return this.refused ? this.enter(this.refused) : this.run(false);
  }

  back() {
    if (this.activity.state === "failed") this.again();
  }

  state() {
    return this.chosen;
  }

  clear() {
    this.shown = null;
    for (const one of [this.alike, this.far, this.wide]) one.hidden = true;
    for (const one of [...this.grids, ...this.strips]) one.clear();
    for (const { root } of this.dots) root.hidden = true;
    for (const one of this.without) one.textContent = "";
  }

  async run(push = true) {
    const { model, other } = this.chosen;
    const key = JSON.stringify([model, other]);
    this.refused = null;
    this.remember(push);
    if (this.shown?.key === key && this.shown.similarity) return this.activity.cancel();
    this.clear();
    const known = this.results.get(key);
    if (known) {
      this.activity.cancel();
      return this.show(known);
    }
    const found = { key, models: [model, other], studies: [], similarity: null };
    await this.activity.run("Measuring…", async (signal, say) => {
      const began = performance.now();
      for await (const event of lines("compare", { model, other }, signal)) {
        if (event.waiting) say(`${event.waiting} before you…`);
        if (event.progress) say(`Measuring ${event.model}: ${event.progress.join(" of ")}…`);
        if (event.study) {
          found.studies.push(event.study);
          this.show(found);
        }
        if (event.similarity) found.similarity = event.similarity;
      }
      this.results.set(key, found);
      if (this.results.size > KEPT) this.results.delete(this.results.keys().next().value);
      this.show(found);
      say(`Compared in ${((performance.now() - began) / 1000).toFixed(1)} s.`);
    });
  }

  // Show what has arrived so far.
  show(found) {
    this.shown = found;
    const { models, studies, similarity } = found;
    const own = studies.slice(0, new Set(models).size); // a model beside itself is shown once
    const both = own.map((study, i) => ({ model: models[i], ...study }));
    this.far.hidden = this.wide.hidden = !both.length;
    this.alike.hidden = !similarity;
    both.forEach((study, i) => {
      this.showDistances(study, i);
      this.strips[i].show(study.model, study);
    });
    const curves = both.map(({ model, sides, width }, i) => {
      const depth = (at) => (sides.length > 1 ? at / (sides.length - 1) : 0);
      const points = sides.map((side, at) => [depth(at), side / width]);
      return { name: model, colour: i, points };
    });
    this.sides.show(curves, { limits: [0, 1], named: true });
    if (similarity) this.showSimilarity(models, similarity);
  }

  showDistances({ model, distances }, i) {
    const plot = this.dots[i];
    plot.title = `${model}: distance by depth`;
    plot.root.querySelector(".title").textContent = plot.title;
    plot.svgNode.setAttribute("aria-label", plot.title);
    plot.root.hidden = !distances;
    const none = "no attention between patches: a convolution combines neighbouring places only.";
    this.without[i].textContent = distances ? "" : `${model} has ${none}`;
    if (!distances) return;
    const heads = distances[0].map((_, head) => {
      const points = distances.map((layer, at) => [at, layer[head]]);
      return { name: `head ${head}`, colour: i, points };
    });
    plot.show(heads, { limits: [0, 0.6] });
  }

  showSimilarity([one, two], found) {
    const rows = { model: one, layers: found.rows };
    const columns = { model: two, layers: found.columns };
    const [first, between, second] = this.grids;
    const blocks = [found.first, found.between, found.second];
    const errors = blocks.flatMap((block) => block.error.flat().filter((x) => x > 0));
    const images =
      `${found.photographs} photographs, each whole and in quarters: ${found.views} images`;
    const error = `a median standard error of ${median(errors).toFixed(2)}`;
    this.counted.textContent =
      `Measured on ${images}. These are few: the values are debiased, but noisy, with ${error} (leaving out one photograph at a time). Compare patterns, not second decimals.`;
    first.compare(rows, rows, found.first);
    if (one === two) return;
    between.compare(rows, columns, found.between);
    second.compare(columns, columns, found.second);
  }

  source() {
    const { models, similarity } = this.shown;
    if (!similarity) return models.join(" and ");
    const images = `${similarity.photographs} photographs, whole and in quarters`;
    return `${models.join(" and ")} · debiased CKA over ${similarity.views} images (${images})`;
  }

  caption() {
    if (!this.shown) return super.caption();
    const { models } = this.shown;
    return {
      title: `Compare: ${models.join(" and ")}`,
      source: this.source(),
      file: `compare-${models.join("-")}`,
    };
  }

  figures() {
    if (!this.shown?.studies.length) return [];
    const figures = [];
    if (this.shown.similarity) {
      const about = notes(`${ALIKE} ${this.counted.textContent}`);
      const grids = this.grids.map((grid) => grid.svg());
      figures.push(part("Similarity of layers (CKA)"), about, ...grids);
    }
    const dots = this.dots.filter(({ root }) => !root.hidden).map((plot) => plot.svg(420));
    if (dots.length) figures.push(part("Attention distance"), notes(FAR), ...dots);
    const strips = this.strips.map((strip) => strip.svg());
    return [...figures, part("Receptive fields"), notes(WIDE), this.sides.svg(420), ...strips];
  }

  data() {
    const { models, studies, similarity } = this.shown ?? {};
    return {
      ...this.chosen,
      studies: studies?.map((study, i) => ({ model: models[i], ...study })) ?? [],
      similarity: similarity ?? null,
    };
  }
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}
