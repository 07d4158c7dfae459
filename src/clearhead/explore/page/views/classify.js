/**
 * Classify: a vision model on an image: its classes, the attention of any patch over the image,
 * feature maps, and saliency.
 */

import { lines, picture } from "../api.js";
import { choose, h, percent } from "../dom.js";
import { FeatureGrid, PER_PAGE } from "../features.js";
import { headTitle } from "../heads.js";
import { ImageMap } from "../image.js";
import { ImagePane, ImageView, mean, shaped } from "../image_pane.js";
import { Explanation, METHODS, SALIENCY } from "../saliency.js";
import { barsFigure } from "../small_figures.js";

const TOP = 5; // classes that are shown
// the value of `group` for feature maps; otherwise SALIENCY, or the name of a group of attentions
const FEATURES = "features";
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
    this.form = h(
      "div",
      { class: "ask" },
      h("div", { class: "row" }, this.choice, this.drop.root, this.chips, this.activity.root),
    );
    this.image = new ImageMap({
      size: 340,
      what: "attention weight",
      patchwise: true,
      pick: (y, x) => this.pickPlace(y, x),
    });
    this.rest = h("p", { class: "rest note" }); // the weight that is on no patch
    this.image.opacity = 0.8;
    this.image.blend.set(0.8);
    this.specials = h("div", {
      class: "chips",
      role: "group",
      "aria-label": "Tokens without a place in the image",
    });
    this.image.frame.after(this.rest, this.specials);
    this.classes = h("div", { class: "classes", "aria-live": "polite" });
    this.what = h("div", { class: "row" });
    this.grid = new FeatureGrid({
      pick: (channel) => {
        this.state.channel = channel;
        this.changed();
      },
      turn: (page) => {
        this.state.page = page;
        this.state.channel = null;
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
    this.body = h(
      "section",
      { class: "inside sight", hidden: true },
      h("div", { class: "left" }, this.image.root, this.explanation.root),
      h(
        "div",
        { class: "right" },
        this.classes,
        h(
          "div",
          { class: "detail" },
          this.what,
          this.heads.root,
          this.grid.root,
          this.explanation.panel,
        ),
      ),
    );
    this.root = h("div", { class: "pane" }, this.form, this.body);
  }

  pickModel(id) {
    Object.assign(this.state, {
      model: id,
      group: "",
      layer: null,
      head: null,
      at: null,
      stage: -1,
      channel: null,
      page: 0,
      target: "",
      region: [],
    });
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
    if (this.result && this.explanation.activity.state === "failed" && !this.repeated) {
      this.repeated = true;
      this.draw();
    }
  }

  request() {
    return { model: this.state.model, image: this.state.image };
  }
  stopped() {}

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
      if (event.progress) say(`Looking: layer ${event.progress[0]} of ${event.progress[1]}…`);
      if (event.look) Object.assign(result, event);
    }
    result.seen = await picture("looks/seen", { look: result.look.id }, signal);
    return result;
  }

  summary({
    look: {
      seen: [tall, wide],
    },
    seconds,
  }) {
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
    if (!(state.group === FEATURES || (state.group === SALIENCY && classes)) && !this.group) {
      state.group = look.groups[0]?.name === "self"
        ? "self"
        : look.features.length
        ? FEATURES
        : (look.groups[0]?.name ?? "");
    }
    this.classes.replaceChildren(
      h("h2", {}, "Classes"),
      ...(classes ? this.classList(classes) : [
        h(
          "p",
          { class: "note" },
          "This model has no classes: it turns the image into one vector.",
        ),
      ]),
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
    return [
      h(
        "ul",
        { class: "bars" },
        classes.slice(0, TOP).map(([name, share]) => {
          const bar = h("span", { class: "weight" });
          bar.style.setProperty("width", `${Math.max(0.5, 100 * share)}%`);
          return h(
            "li",
            {},
            h(
              "button",
              {
                type: "button",
                class: "label",
                title: `What speaks for ${name}?`,
                onclick: () => this.explain(name),
              },
              name,
            ),
            h("span", {}, percent(share)),
            bar,
          );
        }),
      ),
      h("p", { class: "note" }, "Click a class to see which pixels speak for it."),
    ];
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

  // What can be shown of this model: each of its attentions, the feature maps of each stage, and
  // saliency.
  choices() {
    const { look, state } = this;
    const focused = this.what.contains(document.activeElement) ? document.activeElement.name : null;
    const groups = look.groups.map(({ name }) => [
      name,
      name === "self"
        ? "self-attention"
        : name === "pool"
        ? "attention pooling"
        : `attention after ${name.replace("stage", "stage ")}`,
    ]);
    const shown = [
      ...groups,
      ...(look.features.length ? [[FEATURES, "feature maps"]] : []),
      ...(this.result.classes ? [[SALIENCY, "saliency"]] : []),
    ];
    const fitting = Object.entries(METHODS).filter(
      ([, { attention }]) => !attention || look.groups.some(({ name }) => name === "self"),
    );
    if (!fitting.some(([name]) => name === state.method)) state.method = fitting[0][0];
    this.what.replaceChildren(
      ...[
        choose(
          "shown",
          shown,
          state.group,
          (to) => {
            Object.assign(state, {
              group: to,
              layer: null,
              head: null,
              at: null,
              stage: look.features[state.stage] ? state.stage : look.features.length - 1,
            });
            this.choices();
            this.changed(true);
          },
          { name: "shown" },
        ),
        ...(state.group === FEATURES
          ? [
            choose(
              "stage",
              look.features.map((one, i) => [i, `${one.name}, ${one.grid[0]} × ${one.grid[1]}`]),
              state.stage,
              (to) => {
                Object.assign(state, { stage: Number(to), channel: null, page: 0 });
                this.changed();
              },
              { name: "stage" },
            ),
            choose(
              "channels",
              [
                ["strength", "strongest first"],
                ["number", "by number"],
              ],
              state.order,
              (to) => {
                Object.assign(state, { order: to, channel: null, page: 0 });
                this.changed();
              },
              { name: "order" },
            ),
          ]
          : []),
        ...(state.group === SALIENCY
          ? [
            choose(
              "method",
              fitting.map(([name, { title }]) => [name, title]),
              state.method,
              (to) => {
                state.method = to;
                this.changed(true);
              },
              { name: "method" },
            ),
          ]
          : []),
      ],
    );
    if (focused) this.what.querySelector(`[name=${focused}]`)?.focus();
  }

  // The index of the token whose attention is shown: the chosen one, the class token, or the patch
  // in the middle.
  get query() {
    const { rows } = this.group;
    const { at } = this.state;
    if (at !== null && Number.isInteger(at) && at >= 0 && at < rows.names.length) return at;
    return rows.special.length || !rows.grid
      ? 0
      : Math.floor(rows.grid[0] / 2) * rows.grid[1] + Math.floor(rows.grid[1] / 2);
  }

  async draw() {
    const asked = (this.asked = {});
    const explained = this.state.group === SALIENCY;
    this.image.root.hidden = explained;
    if (!explained) this.explanation.clear();
    for (const one of this.classes.querySelectorAll("button.label")) {
      one.setAttribute("aria-pressed", explained && one.textContent === this.target);
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
    const first = special.length;
    this.drawHeads(all, [
      "map",
      "entropy",
      ...(group.rows.grid ? ["distance"] : []),
      "maximum",
      ...(names[0] === "class token" ? ["sink"] : []),
    ]);
    const weights = mean(all, state.layer, state.head);
    const values = shaped(weights.subarray(first), grid);
    const at = this.place(query);
    this.shown = {
      title: this.title(),
      grid,
      values,
      weights,
      all,
      query,
      unit: "attention weight",
    };
    this.image.call(this.shown.title, "attention weight");
    this.image.show({ overlay: values, image: this.result.seen, at });
    this.rest.textContent = special.length
      ? `The rest is on: ${
        special.map((i) => `${group.columns.names[i]} ${percent(weights[i])}`).join(", ")
      }.`
      : "";
    const focused = this.specials.contains(document.activeElement);
    this.specials.replaceChildren(
      ...group.rows.special.map((i) =>
        h(
          "button",
          {
            type: "button",
            class: "chip",
            "aria-pressed": i === query,
            onclick: () => {
              state.at = i === 0 ? null : i;
              this.changed();
            },
          },
          group.rows.names[i],
        )
      ),
      ...(group.rows.grid
        ? [
          h(
            "span",
            { class: "note" },
            "Click a patch to see what it attends to; arrow keys move it.",
          ),
        ]
        : []),
    );
    if (focused) this.specials.querySelector('[aria-pressed="true"]')?.focus();
  }

  async drawFeatures(asked) {
    const { look, state } = this;
    const stage = look.features[state.stage];
    const order = state.order === "strength" ? stage.order : [...stage.order].sort((a, b) => a - b);
    const last = Math.ceil(order.length / PER_PAGE) - 1;
    if (state.channel !== null && order.includes(state.channel)) {
      state.page = Math.floor(order.indexOf(state.channel) / PER_PAGE);
    }
    state.page = Math.min(Math.max(0, Math.floor(state.page)), last);
    const channels = order.slice(state.page * PER_PAGE, (state.page + 1) * PER_PAGE);
    this.heads.hide();
    const maps = await this.ask("features", { stage: state.stage, channels: channels.join() });
    if (this.asked !== asked) return;
    const at = channels.includes(state.channel) ? state.channel : channels[0];
    this.grid.show({ title: stage.name, maps, channels, page: state.page, of: order.length, at });
    const values = this.grid.rows(at);
    this.shown = {
      title: this.title(at),
      grid: stage.grid,
      values,
      channel: at,
      channels,
      maps,
      unit: "activation",
    };
    this.image.call(this.shown.title, "activation");
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
    const of = group.rows.names[this.query];
    const place = this.place(this.query);
    return `Attention of ${
      place ? `the patch in ${of}` : of === "class token" ? `the ${of}` : of
    }, ${headTitle(group.layers, group.heads, state.layer, state.head)}`;
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
    const { state } = this;
    const where = {
      [FEATURES]: () => this.look?.features[state.stage]?.name ?? "features",
      [SALIENCY]: () => state.method,
    }[state.group]?.() ?? this.headName();
    return {
      title: `${image}${best ? ` → ${best[0]} ${percent(best[1])}` : ""}`,
      source: [
        this.source(),
        this.shown?.title,
        this.shown?.saliency ? this.explanation.told() : this.rest.textContent,
      ]
        .filter(Boolean)
        .join(" · "),
      file: [state.model, image, where].join("-"),
    };
  }

  figures() {
    if (!this.shown) return [];
    return [
      (this.shown.saliency ? this.explanation.image : this.image).svg(),
      this.result.classes
        ? barsFigure("Classes", this.result.classes.slice(0, TOP), ["probability"])
        : null,
      this.heads.root.hidden ? null : this.heads.svg(),
      this.grid.svg(),
    ];
  }

  data() {
    const { shown, group, state } = this;
    const attention = shown?.all && {
      attention: group.name,
      title: shown.title,
      query: shown.query,
      queries: group.rows.names,
      keys: group.columns.names,
      special: group.columns.special,
      grid: shown.grid,
      weights: shown.weights,
      every_head: { shape: shown.all.shape, weights: shown.all.data },
      heads: this.heads.told,
    };
    const features = shown?.maps && {
      stage: this.look.features[state.stage].name,
      title: shown.title,
      channel: shown.channel,
      channels: shown.channels,
      shape: shown.maps.shape,
      maps: shown.maps.data,
    };
    return {
      ...state,
      image_name: this.named(),
      seen: this.look?.seen ?? null,
      classes: this.result?.classes ?? null,
      attention: attention ?? null,
      features: features ?? null,
      saliency: shown?.saliency ? { ...shown.saliency, region: this.explanation.share() } : null,
    };
  }
}

// Numbers of both signs, with 0 in the middle of the colours.
class DifferenceMap extends ImageMap {
  ends() {
    const most = this.most();
    return [-most, most];
  }
}

// Rows of numbers as multiples of the mean of their absolute values.
function relative(values) {
  const all = values.flat();
  const mean = all.reduce((sum, x) => sum + Math.abs(x), 0) / all.length || 1;
  return values.map((row) => row.map((x) => x / mean));
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
    for (const one of this.panes) {
      if (
        one === pane ||
        (one.group?.rows.grid && String(one.group.rows.grid) === String(pane.group.rows.grid))
      ) {
        one.take(y, x);
      }
    }
  }

  // The difference of what the two panes show, where it is over the same grid.
  compare() {
    const both = this.panes.map((pane) => pane.shown);
    this.difference.hidden = this.panes.length < 2 || !both.every(Boolean);
    this.differing = null;
    if (this.difference.hidden) return;
    const [a, b] = both;
    const [left, right] = this.panes;
    const kind = a.unit === b.unit;
    const explained = both.some((one) => one.saliency);
    const channels = kind &&
      a.channel !== undefined &&
      (left.state.model !== right.state.model || a.title !== b.title);
    const same = kind && !channels && String(a.grid) === String(b.grid);
    this.map.root.hidden = !same;
    const grids = both.map(({ grid }) => grid.join(" × "));
    const place = (pane) => pane.group && pane.group.rows.names[pane.query];
    this.why.textContent = channels
      ? "Channels of different models or stages respond to different things: there is no difference patch by patch."
      : !kind && explained
      ? "The two maps are of different kinds: there is no difference place by place."
      : !kind
      ? "Attention weights and activations are not the same: there is no difference patch by patch."
      : !same
      ? `The grids are ${grids[0]} and ${grids[1]}: there is no difference patch by patch.`
      : place(left) !== place(right)
      ? `The left is of ${place(left)}, the right of ${place(right)}.`
      : left.state.image !== right.state.image
      ? "The two images are not the same."
      : explained
      ? "Each map is divided by the mean of its absolute values, as the scores of two classes or models have different scales."
      : "";
    if (!same) return;
    const [before, after] = both.map(({ values }) => (explained ? relative(values) : values));
    this.differing = before.map((row, y) => row.map((x, i) => after[y][i] - x));
    this.map.call(
      `${right.state.model} (${b.title}) − ${left.state.model} (${a.title})`,
      explained ? "difference, in multiples of each map's mean" : `difference of ${a.unit}s`,
    );
    this.map.show({ overlay: this.differing, image: null });
  }
}
