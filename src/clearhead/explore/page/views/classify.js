/**
 * Classify: a vision model on an image: its classes, the attention of any patch over the image,
 * feature maps, and saliency.
 */

import { lines, picture } from "../api.js";
import { headName, headTitle } from "../attention/head_grid.js";
import { choiceMenus, FEATURES, fittingMethods, usualGroup } from "../classify/choices.js";
import { caution, DifferenceMap, differenceOf, obstacleTo } from "../classify/difference.js";
import { savedAttention, savedFeatures } from "../classify/saved.js";
import { button, shareList } from "../controls.js";
import { h } from "../dom.js";
import { barsFigure } from "../figures/small_figures.js";
import { Explanation, SALIENCY } from "../images/explanation.js";
import { FeatureGrid, PER_PAGE } from "../images/feature_grid.js";
import { ImageMap } from "../images/image_map.js";
import { ImagePane, ImageView } from "../images/image_pane.js";
import { mean, shaped } from "../images/patch_weights.js";
import { percent } from "../numbers.js";

const TOP = 5; // classes that are shown
// the method that draws what `group` says; drawAttention if it is not here
const DRAWN = { [FEATURES]: "drawFeatures", [SALIENCY]: "drawSaliency" };
const DISTANCE = [
  "distance",
  "distance",
  "patches",
  "The mean distance in the grid from a patch to the patches it attends to.",
];
const SINK = [
  "sink",
  "weight on the class token",
  "weight",
  "The mean weight that all tokens put on the class token.",
];
const SMALL = [
  "map",
  "small maps",
  "attention weight",
  "What the chosen token attends to in every head, each up to its own largest weight (colours: square root).",
];
const FIRST_STATE = { group: "", layer: null, head: null, at: null, stage: -1, channel: null };

class ClassifyPane extends ImagePane {
  static KIND = "classify";
  static SHIPPED = ["vit-imagenette", "vit-cifar10", "resnet-cifar10"];
  static EXAMPLE = { model: "vit-imagenette", image: "church", layer: "0", head: "1" };
  static DOING = "Looking…";
  static NONE =
    "There is no vision model here: start the explorer with the folder of one, for instance DINOv2's: clearhead explore path/to/dinov2";
  static START = {
    model: "",
    image: "",
    group: "",
    layer: null,
    head: null,
    at: null,
    colouring: "map",
    stage: -1,
    channel: null,
    order: "strength",
    page: 0,
    method: "grad-cam",
    target: "",
    region: [],
  };

  constructor(view) {
    super(view, [SMALL, DISTANCE, SINK]);
    const { choice, drop, chips, activity } = this;
    const row = h("div", { class: "row" }, choice, drop.root, chips, activity.root);
    this.form = h("div", { class: "ask" }, row);
    this.image = new ImageMap({
      size: 340,
      what: "attention weight",
      patchwise: true,
      pick: (y, x) => this.pickPlace(y, x),
    });
    this.image.fade(0.8);
    this.rest = h("p", { class: "rest note" }); // the weight that is on no patch
    const label = "Tokens without a place in the image";
    this.specials = h("div", { class: "chips", role: "group", "aria-label": label });
    this.image.frame.after(this.rest, this.specials);
    this.classes = h("div", { class: "classes", "aria-live": "polite" });
    this.what = h("div", { class: "row" });
    this.grid = new FeatureGrid({
      pick: (channel) => {
        this.state.channel = channel;
        this.changed();
      },
      turn: (page) => {
        Object.assign(this.state, { page, channel: null });
        this.changed();
      },
    });
    this.explanation = new Explanation({
      region: (box) => {
        this.state.region = box;
        this.view.remember();
      },
      again: () => this.draw(),
    });
    this.body = this.makeBody();
    this.root = h("div", { class: "pane" }, this.form, this.body);
  }

  makeBody() {
    const { image, classes, what, heads, grid, explanation } = this;
    const parts = [what, heads.root, grid.root, explanation.panel];
    return h(
      "section",
      { class: "inside sight", hidden: true },
      h("div", { class: "left" }, image.root, explanation.root),
      h("div", { class: "right" }, classes, h("div", { class: "detail" }, parts)),
    );
  }

  pickModel(id) {
    Object.assign(this.state, FIRST_STATE, { model: id, page: 0, target: "", region: [] });
    this.suggest();
    this.run();
  }

  // Another image has other classes and other places.
  renew() {
    super.renew();
    Object.assign(this.state, { target: "", region: [] });
  }

  // The server answers again.
  resume() {
    const failed = this.explanation.activity.state === "failed";
    if (!this.result || !failed || this.repeated) return;
    this.repeated = true;
    this.draw();
  }

  request() {
    return { model: this.state.model, image: this.state.image };
  }

  stopped() {} // there is nothing to show before the end

  clear() {
    this.controller?.abort();
    this.body.hidden = true;
    this.look = this.shown = null;
    this.heads.forget();
    this.grid.clear();
    this.explanation.clear();
    this.classes.replaceChildren();
    this.image.show({ overlay: null, image: null });
  }

  async compute(request, signal, say) {
    const result = {};
    for await (const event of lines("classify", request, signal)) {
      if (event.waiting) say(`${event.waiting} before you…`);
      if (event.progress) say(`Looking: layer ${event.progress.join(" of ")}…`);
      if (event.look) Object.assign(result, event);
    }
    result.seen = await picture("looks/seen", { look: result.look.id }, signal);
    return result;
  }

  summary({ look, seconds }) {
    const [tall, wide] = look.seen;
    return `${wide} × ${tall} pixels in ${Math.round(1000 * (seconds ?? 0))} ms.`;
  }

  get group() {
    return this.look?.groups.find((one) => one.name === this.state.group) ?? null;
  }

  show(result) {
    const { look, classes } = result;
    const { state } = this;
    this.open(look);
    this.body.hidden = false;
    const shown = state.group === FEATURES || (state.group === SALIENCY && classes) || this.group;
    if (!shown) state.group = usualGroup(look);
    const none = "This model has no classes: it turns the image into one vector.";
    this.classes.replaceChildren(
      h("h2", {}, "Classes"),
      ...(classes ? this.classList(classes) : [h("p", { class: "note" }, none)]),
    );
    if (!look.features[state.stage] && state.group === FEATURES) {
      state.stage = look.features.length - 1;
    }
    this.choices();
    this.suggest();
    this.draw();
  }

  // The likeliest classes; a click on one explains it.
  classList(classes) {
    const rows = classes.slice(0, TOP).map(([name, share]) => {
      const more = { class: "label", title: `What speaks for ${name}?` };
      return [share, button(name, () => this.explain(name), more), percent(share)];
    });
    const how = "Click a class to see which pixels speak for it.";
    return [shareList(rows), h("p", { class: "note" }, how)];
  }

  explain(target) {
    Object.assign(this.state, { group: SALIENCY, target });
    this.choices();
    this.changed(true);
  }

  // The class that is explained: the chosen one, or the likeliest.
  get target() {
    const { classes } = this.result;
    return classes.some(([name]) => name === this.state.target) ? this.state.target : classes[0][0];
  }

  // The menus of what can be shown of this model.
  choices() {
    const { look, state } = this;
    const focused = this.what.contains(document.activeElement) ? document.activeElement.name : null;
    const methods = fittingMethods(look);
    if (!methods.some(([name]) => name === state.method)) state.method = methods[0][0];
    const change = (changed, push = false) => {
      Object.assign(state, changed);
      if ("group" in changed) this.choices();
      this.changed(push);
    };
    this.what.replaceChildren(...choiceMenus(this.result, state, change));
    if (focused) this.what.querySelector(`[name=${focused}]`)?.focus();
  }

  // The index of the token whose attention is shown: the chosen one, the class token, or the patch
  // in the middle.
  get query() {
    const { names, special, grid } = this.group.rows;
    const { at } = this.state;
    if (Number.isInteger(at) && at >= 0 && at < names.length) return at;
    if (special.length || !grid) return 0;
    const [rows, columns] = grid;
    return Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  }

  async draw() {
    const asked = (this.asked = {});
    const explained = this.state.group === SALIENCY;
    this.image.root.hidden = explained;
    if (!explained) this.explanation.clear();
    for (const label of this.classes.querySelectorAll("button.label")) {
      label.setAttribute("aria-pressed", explained && label.textContent === this.target);
    }
    try {
      await this[DRAWN[this.state.group] ?? "drawAttention"](asked);
    } catch (trouble) {
      if (trouble.status === 404) return this.again();
      return this.fail(trouble);
    }
    if (this.asked === asked) this.view.compare();
  }

  // The weights of the chosen token in every layer and head are requested once, so that another
  // head needs no request.
  async drawAttention(asked) {
    const { group, state, query } = this;
    this.grid.clear();
    const all = await this.ask("query", { group: group.name, at: query });
    if (this.asked !== asked) return;
    const { names, special, grid } = group.columns;
    const colourings = ["map", "entropy", "distance", "maximum", "sink"];
    const unfit = { distance: !group.rows.grid, sink: names[0] !== "class token" };
    this.drawHeads(
      all,
      colourings.filter((id) => !unfit[id]),
    );
    const weights = mean(all, state.layer, state.head);
    const values = shaped(weights.subarray(special.length), grid);
    const unit = "attention weight";
    this.shown = { title: this.title(), grid, values, weights, all, query, unit };
    this.image.call(this.shown.title, unit);
    this.image.show({ overlay: values, image: this.result.seen, at: this.place(query) });
    const rest = special.map((i) => `${names[i]} ${percent(weights[i])}`);
    this.rest.textContent = rest.length ? `The rest is on: ${rest.join(", ")}.` : "";
    this.drawSpecials(query);
  }

  // The tokens without a place in the image, as buttons.
  drawSpecials(query) {
    const { names, special, grid } = this.group.rows;
    const focused = this.specials.contains(document.activeElement);
    const chips = special.map((i) => {
      const choose = () => {
        this.state.at = i === 0 ? null : i;
        this.changed();
      };
      return button(names[i], choose, { class: "chip", "aria-pressed": i === query });
    });
    const how = "Click a patch to see what it attends to; arrow keys move it.";
    if (grid) chips.push(h("span", { class: "note" }, how));
    this.specials.replaceChildren(...chips);
    if (focused) this.specials.querySelector('[aria-pressed="true"]')?.focus();
  }

  async drawFeatures(asked) {
    const { look, state } = this;
    const stage = look.features[state.stage];
    const byNumber = (a, b) => a - b;
    const order = state.order === "strength" ? stage.order : [...stage.order].sort(byNumber);
    const last = Math.ceil(order.length / PER_PAGE) - 1;
    if (state.channel !== null && order.includes(state.channel)) {
      state.page = Math.floor(order.indexOf(state.channel) / PER_PAGE);
    }
    state.page = Math.min(Math.max(0, Math.floor(state.page)), last);
    const { page } = state;
    const channels = order.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
    this.heads.hide();
    const maps = await this.ask("features", { stage: state.stage, channels: channels.join() });
    if (this.asked !== asked) return;
    const at = channels.includes(state.channel) ? state.channel : channels[0];
    this.grid.show({ title: stage.name, maps, channels, page, of: order.length, at });
    const values = this.grid.rows(at);
    const unit = "activation";
    const { grid } = stage;
    this.shown = { title: this.title(at), grid, values, channel: at, channels, maps, unit };
    this.image.call(this.shown.title, unit);
    this.image.show({ overlay: values, image: this.result.seen });
    this.rest.textContent = "";
    this.specials.replaceChildren();
  }

  async drawSaliency(asked) {
    const { state, target } = this;
    const { model, image } = this.request();
    const known = (this.result.explained ??= new Map());
    const key = JSON.stringify([state.method, target]);
    this.heads.hide();
    this.grid.clear();
    this.shown = null;
    const found = known.get(key) ??
      (await this.explanation.ask({ model, image, method: state.method, target }));
    if (found) known.set(key, found);
    if (!found || this.asked !== asked) return;
    this.repeated = false;
    this.explanation.show(found, this.result.seen, state.region);
    this.shown = {
      title: this.explanation.image.title,
      grid: [found.values.length, found.values[0].length],
      values: found.values,
      unit: `${state.method} value`,
      saliency: found,
    };
  }

  title(channel = this.shown?.channel) {
    const { group, state } = this;
    if (state.group === FEATURES) {
      return `Channel ${channel} of ${this.look.features[state.stage].name}`;
    }
    const { query } = this;
    const name = group.rows.names[query];
    const heads = headTitle(group.layers, group.heads, state.layer, state.head);
    if (this.place(query)) return `Attention of the patch in ${name}, ${heads}`;
    return `Attention of ${name === "class token" ? "the class token" : name}, ${heads}`;
  }

  // The row and column of a token; null for one without a place.
  place(token) {
    const { special, grid } = this.group.rows;
    const i = token - special.length;
    return grid && i >= 0 ? [Math.floor(i / grid[1]), i % grid[1]] : null;
  }

  pickPlace(y, x) {
    if (!this.group?.rows.grid) return;
    this.view.pickPlace(this, y, x);
  }

  // Show what the patch in this row and column attends to.
  take(y, x) {
    const { special, grid } = this.group.rows;
    this.state.at = special.length + y * grid[1] + x;
    this.changed();
  }

  caption() {
    const [best] = this.result?.classes ?? [];
    const image = this.named();
    const { state, shown } = this;
    const found = best ? ` → ${best[0]} ${percent(best[1])}` : "";
    const about = shown?.saliency ? this.explanation.told() : this.rest.textContent;
    let where = headName(state);
    if (state.group === FEATURES) where = this.look?.features[state.stage]?.name ?? "features";
    if (state.group === SALIENCY) where = state.method;
    return {
      title: `${image}${found}`,
      source: [this.source(), shown?.title, about].filter(Boolean).join(" · "),
      file: [state.model, image, where].join("-"),
    };
  }

  figures() {
    if (!this.shown) return [];
    const { classes } = this.result;
    return [
      (this.shown.saliency ? this.explanation.image : this.image).svg(),
      classes ? barsFigure("Classes", classes.slice(0, TOP), ["probability"]) : null,
      this.heads.root.hidden ? null : this.heads.svg(),
      this.grid.svg(),
    ];
  }

  data() {
    const { shown, state, look, result } = this;
    return {
      ...state,
      image_name: this.named(),
      seen: look?.seen ?? null,
      classes: result?.classes ?? null,
      attention: shown?.all ? savedAttention(shown, this.group, this.heads.told) : null,
      features: shown?.maps ? savedFeatures(shown, look.features[state.stage].name) : null,
      saliency: shown?.saliency ? { ...shown.saliency, region: this.explanation.share() } : null,
    };
  }
}

export class Classify extends ImageView {
  constructor(frame) {
    super(
      frame,
      "classify",
      "Classify",
      "What a vision model uses of an image: what the class token of a vision transformer, or a patch of it, attends to, the feature maps of a convolutional network, and the pixels that speak for a class.",
      ClassifyPane,
    );
  }

  differenceMap() {
    return new DifferenceMap({ size: 340, patchwise: true });
  }

  // A patch was chosen: the other pane shows the same one, if it has the same grid.
  pickPlace(pane, y, x) {
    const gridOf = ({ group }) => group?.rows.grid && String(group.rows.grid);
    for (const other of this.panes) {
      if (other === pane || gridOf(other) === gridOf(pane)) other.take(y, x);
    }
  }

  // The difference of what the two panes show, where it is over the same grid.
  compare() {
    const [left, right] = this.panes;
    this.differing = null;
    this.difference.hidden = !left.shown || !right?.shown;
    if (this.difference.hidden) return;
    const why = obstacleTo(left, right);
    this.map.root.hidden = why !== "";
    this.why.textContent = why || caution(left, right);
    if (why) return;
    this.differing = differenceOf(left, right);
    const name = ({ state, shown }) => `${state.model} (${shown.title})`;
    const unit = left.shown.saliency
      ? "difference, in multiples of each map's mean"
      : `difference of ${left.shown.unit}s`;
    this.map.call(`${name(right)} − ${name(left)}`, unit);
    this.map.show({ overlay: this.differing, image: null });
  }
}
