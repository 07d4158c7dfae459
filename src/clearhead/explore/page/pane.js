/**
 * Pane: one model on one input, with its form, result and figures. PanedView: a view with one pane,
 * or two side by side.
 */

import { Activity, sentence } from "./activity.js";
import { choose, h } from "./dom.js";
import { part } from "./figure.js";
import { HeatMap, largest, whole } from "./map.js";
import { View } from "./view.js";

const KEPT = 20; // results that Back and Forward show without asking the server again
// keys of a state that are null or a number
const WHOLE_NUMBERS = ["layer", "head", "at", "channel"];

/** The state of an address, in the types of `start`; what cannot be read is as in `start`. */
export function parsed(start, given) {
  const state = {};
  for (const [key, usual] of Object.entries(start)) {
    const text = given[key];
    state[key] = usual !== null && typeof usual === "object" ? structuredClone(usual) : usual;
    if (text === undefined || text === "") continue;
    if (typeof usual === "number" || WHOLE_NUMBERS.includes(key)) {
      const x = Number(text);
      if (Number.isFinite(x)) state[key] = x;
    } else if (usual !== null && typeof usual === "object") {
      try {
        const value = JSON.parse(text);
        if (value && typeof value === "object") state[key] = value;
      } catch {
        /* as usual */
      }
    } else state[key] = text;
  }
  return state;
}

/**
 * A subclass has: static KIND (what its models do), START (its state) and INPUT (the key of what
 * the model is given); request(), compute(request, signal, say) -> result, show(result), clear(),
 * stopped().
 * A setting that is changed while a result is shown goes to state.next: the address stays that of
 * the result, and the next run uses it.
 */
export class Pane {
  static INPUT = "text";

  constructor(view) {
    Object.assign(this, {
      view,
      frame: view.frame,
      state: structuredClone(this.constructor.START),
      results: new Map(),
      result: null,
      controls: {},
    });
    this.activity = new Activity({ stopped: () => this.stopped() });
    this.choice = h("div", { class: "choice" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Examples" });
    this.input = h("textarea", {
      rows: 1,
      spellcheck: "false",
      dir: "auto",
      oninput: () => this.grow(),
    });
    // how the model was opened, if not as one of this library's
    this.about = h("p", { class: "note about", hidden: true });
    this.go = h("button", { type: "submit", class: "go" });
  }

  get given() {
    return this.state[this.constructor.INPUT];
  }
  set given(to) {
    this.state[this.constructor.INPUT] = to;
  }

  get model() {
    return this.known?.[this.state.model] ?? null;
  }

  // The models, requested until they have arrived once.
  ready() {
    this.coming ??= this.frame
      .known(this.constructor.KIND, this.state.model)
      .then((all) => this.offer(all))
      .catch((trouble) => {
        this.coming = null;
        throw trouble;
      });
    return this.coming;
  }

  offer(all) {
    if (all.some(({ id, version }) => this.known?.[id] && this.known[id].version !== version)) {
      this.results.clear(); // a run was trained again
    }
    this.known = Object.fromEntries(all.map((one) => [one.id, one]));
    if (!this.model) this.state.model = this.usual(all)?.id ?? "";
    this.menu();
    this.suggest();
  }

  menu() {
    const size = ({ parameters: n }) =>
      n ? ` · ${n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : `${Math.ceil(n / 1e3)}k`}` : "";
    this.controls.model = choose(
      "model",
      grouped(Object.values(this.known), size),
      this.state.model,
      (id) => this.chooseModel(id),
    );
    this.choice.replaceChildren(this.controls.model);
  }

  // The models of runs that have finished since, or are gone.
  async relist() {
    const trained = await this.frame.trained(this.constructor.KIND);
    const before = Object.values(this.known).filter((one) => one.trained);
    const key = (list) => JSON.stringify(list.map(({ id, version }) => [id, version]).sort());
    if (key(trained) === key(before)) return;
    const open = before.filter(
      (one) =>
        one.id === this.state.model ||
        trained.some(({ id, version }) => id === one.id && version === one.version),
    ); // also what is on screen
    this.known = Object.fromEntries(
      [
        ...Object.values(this.known).filter((one) => !one.trained),
        ...trained.filter((one) => !open.some(({ id }) => id === one.id)),
        ...open,
      ].map((one) => [one.id, one]),
    );
    const focused = this.choice.contains(document.activeElement);
    this.menu();
    if (focused) this.choice.querySelector("select").focus();
  }

  // The user chose a model; that of a run is opened first.
  async chooseModel(id) {
    if (this.known[id].examples) return this.pickModel(id);
    const before = this.state.model;
    const opened = await this.activity.run(`Opening ${this.known[id].name}…`, async () => {
      this.known[id] = await this.frame.opened(this.constructor.KIND, id);
    });
    if (opened) this.pickModel(id);
    else if (this.state.model === before) this.controls.model.set(before);
  }

  // The state that a model starts with, which the address leaves out.
  initial() {
    return this.constructor.START;
  }

  // The model to start with.
  usual(all) {
    return all[0];
  }

  suggest() {
    this.about.textContent = this.model?.note ? sentence({ message: this.model.note }) : "";
    this.about.hidden = !this.model?.note;
    if (this.constructor.HINT) {
      this.input.placeholder = this.model && !this.model.examples?.length
        ? this.constructor.HINT
        : "";
    }
    this.chips.replaceChildren(
      ...(this.model?.examples ?? []).map((text) =>
        h(
          "button",
          {
            type: "button",
            class: "chip",
            onclick: () => {
              this.input.value = text;
              this.run();
            },
          },
          text,
        )
      ),
    );
  }

  // Another model: its own examples, and nothing of the earlier one's result.
  pickModel(id) {
    const before = this.model?.examples ?? [];
    Object.assign(this.state, { model: id, layer: null, head: null, at: null });
    this.suggest();
    if (String(before) !== String(this.model.examples)) {
      this.input.value = this.model.examples?.[0] ?? ""; // another language, or other symbols
    }
    this.run();
  }

  // Open the state of an address: from the kept results, or by running it.
  async enter(given) {
    const { model } = this.state;
    this.state = Object.assign(this.state, parsed(this.constructor.START, given));
    if (!given.model && this.known?.[model]) this.state.model = model;
    // the model of a run, which may have been trained again
    if (this.state.model && this.known && (!this.model || this.model.trained)) this.coming = null;
    const mine = (this.entering = {});
    this.input.value = this.given;
    this.sync();
    const listed = Boolean(this.coming);
    try {
      await this.ready();
    } catch (trouble) {
      return this.lost(trouble);
    }
    if (listed) this.relist().catch(() => {}); // the frame says if the server does not answer
    if (this.entering !== mine) return; // the user has started something else meanwhile
    if (!this.model) return this.none();
    for (const [key, value] of Object.entries(this.initial())) {
      if (!(key in given) && value !== this.constructor.START[key]) this.state[key] = value;
    }
    if (!(this.constructor.INPUT in given) && !this.input.value) {
      this.input.value = this.given = this.model.examples?.[0] ?? "";
    }
    this.sync();
    this.ran = { model: this.state.model, text: this.input.value };
    const known = this.results.get(JSON.stringify(this.request()));
    if (known) {
      this.activity.cancel();
      this.clear();
      this.finish(known);
    } else await this.run(false);
  }

  // The model of the address cannot be used: say so, and offer the others.
  async lost(trouble) {
    this.clear();
    this.state.model = "";
    await this.ready().catch(() => {});
    this.activity.fail(trouble);
  }

  none() {
    this.clear();
    this.activity.say(this.constructor.NONE);
  }

  // As many lines as the text has, up to six.
  grow() {
    this.input.rows = Math.min(
      6,
      Math.max(
        1,
        this.input.value
          .split("\n")
          .reduce((sum, line) => sum + Math.ceil((line.length + 1) / 110), 0),
      ),
    );
  }

  sync() {
    for (const [key, control] of Object.entries(this.controls)) {
      if (key in this.state) control.set(this.setting(key));
    }
    this.suggest();
    this.grow();
  }

  // A setting of the form, which the result on screen may not have yet.
  setting(key) {
    const next = this.state.next?.[key];
    return typeof next === "number" ? next : this.state[key];
  }

  // Change a setting of the form.
  set(key, value) {
    if (!this.result) this.state[key] = value;
    else if (value === this.state[key]) delete this.state.next[key];
    else this.state.next[key] = value;
    this.view.remember();
  }

  // Compute the result of what is in the form, or with `fresh` false that of the address again. A
  // later run replaces an earlier one.
  async run(fresh = true) {
    this.entering = null;
    if (fresh) this.repeated = false;
    if (fresh && this.state.next) {
      for (const key of Object.keys(this.controls)) this.state[key] = this.setting(key);
      this.state.next = {};
    }
    const { model } = this.state;
    const text = this.input.value;
    if (text !== this.ran?.text || model !== this.ran?.model) this.renew();
    this.ran = { model, text };
    this.given = text;
    this.grow();
    const began = performance.now();
    await this.activity.run(this.constructor.DOING, async (signal, say) => {
      await this.ready();
      if (!this.model) return this.none();
      const request = this.request();
      const key = JSON.stringify(request);
      this.view.remember(this.result !== null && key !== this.key);
      this.key = key;
      this.clear();
      this.result = null;
      this.view.compare();
      if (!this.given.trim()) return say(this.constructor.EMPTY);
      const result = await this.compute(request, signal, say);
      result.seconds = (performance.now() - began) / 1000;
      this.results.delete(key);
      this.results.set(key, result);
      if (this.results.size > KEPT) this.results.delete(this.results.keys().next().value);
      this.finish(result, say);
    });
  }

  finish(result, say = (text) => this.activity.say(text)) {
    this.repeated = false;
    this.result = result;
    this.key = JSON.stringify(this.request());
    say(this.summary(result));
    this.show(result);
    this.view.remember();
    this.view.compare();
  }

  // Another text or model: what was chosen in the earlier result no longer applies.
  renew() {
    this.state.at = null;
  }

  // The server answers again: repeat what failed besides the result.
  resume() {}

  // Show an error of a request that followed a result.
  fail(trouble) {
    if (trouble?.name !== "AbortError") this.activity.fail(trouble);
  }

  source() {
    const { model } = this;
    return model
      ? `${model.name} (${FAMILIES[model.family] ?? model.family}, ${
        (model.parameters ?? 0).toLocaleString("en")
      } parameters)`
      : "";
  }
}

/**
 * Models as the options of a menu, those of runs in a group of their own. more: what follows the
 * name and the family
 */
export function grouped(all, more = () => "") {
  const option = (one) => [
    one.id,
    `${one.name} · ${FAMILIES[one.family] ?? one.family}${more(one)}`,
  ];
  const trained = all.filter((one) => one.trained);
  return [
    ...all.filter((one) => !one.trained).map(option),
    ...(trained.length ? [{ label: "Trained here", options: trained.map(option) }] : []),
  ];
}

export const FAMILIES = {
  RNNSeq2Seq: "RNN",
  GPT: "language model",
  BERT: "encoder",
  ViT: "vision transformer",
  Captioner: "captioner",
}; // the class of a model -> its name for readers; others are their own

export class PanedView extends View {
  constructor(frame, name, title, lead, PaneClass) {
    super(frame, name, title, lead);
    this.PaneClass = PaneClass;
    this.panes = [new PaneClass(this)];
    this.toggle = h(
      "button",
      {
        type: "button",
        class: "beside-toggle",
        "aria-pressed": false,
        title: "Compare two models, or two inputs",
        onclick: () => this.split(this.panes.length === 1),
      },
      "Side by side",
    );
    this.heading.append(this.toggle);
    this.row = h("div", { class: "panes" }, this.panes[0].root);
    this.map = this.differenceMap();
    this.why = h("p", { class: "note" });
    this.difference = h(
      "section",
      { class: "difference", hidden: true, "aria-label": "Difference" },
      h("h2", {}, "Difference: right minus left"),
      this.why,
      this.map.root,
    );
    this.root.append(this.row, this.difference);
  }

  differenceMap() {
    return new HeatMap({ signed: true, tall: 360, what: "difference of attention weights" });
  }

  enter(state) {
    const given = Object.keys(state).length > 0;
    if (!given && this.entered) return this.remember(); // as it was left
    this.entered = true;
    const second = Object.fromEntries(
      Object.entries(state)
        .filter(([key]) => key.endsWith("2"))
        .map(([key, value]) => [key.slice(0, -1), value]),
    );
    this.arrange(Object.keys(second).length > 0);
    this.panes[0].enter(state);
    this.panes[1]?.enter(second);
  }

  back() {
    for (const pane of this.panes) {
      if (pane.activity.state === "failed" && !pane.repeated) {
        pane.repeated = true;
        pane.run(false);
      } // once: it may be what stops the server
      else {
        if (pane.inside?.missing) pane.inside.draw();
        pane.resume();
      }
    }
  }

  // Show one pane or two.
  arrange(two) {
    if (two && this.panes.length === 1) this.panes.push(this.second ??= new this.PaneClass(this));
    if (!two) this.panes.length = 1;
    this.row.replaceChildren(...this.panes.map((pane) => pane.root));
    this.root.classList.toggle("split", two);
    this.toggle.setAttribute("aria-pressed", two);
    this.difference.hidden = true;
  }

  // Another model that can be compared with the first pane's.
  partner({ known, model }) {
    return Object.values(known ?? {}).find(
      (one) => one.id !== model?.id && String(one.examples) === String(model?.examples),
    );
  }

  // The user's choice: the second pane starts with the first one's input, and another model if
  // there is one.
  split(two) {
    this.arrange(two);
    if (two) {
      const [{ state }] = this.panes;
      const other = this.partner(this.panes[0]);
      const given = Object.fromEntries(
        Object.entries({
          ...state,
          model: other?.id ?? state.model,
          layer: null,
          head: null,
          at: null,
        })
          .filter(([, value]) => value !== null && value !== "")
          .map(([key, value]) => [
            key,
            typeof value === "object" ? JSON.stringify(value) : String(value),
          ]),
      );
      this.panes[1].enter(given);
    }
    this.remember(true);
    this.compare();
  }

  state() {
    const own = (pane, end) =>
      Object.entries(pane.state)
        .filter(
          ([key, value]) =>
            JSON.stringify(value) !== JSON.stringify(pane.initial()[key]) || key === "model",
        )
        .map(([key, value]) => [key + end, value]);
    return Object.fromEntries([
      ...own(this.panes[0], ""),
      ...(this.panes[1] ? own(this.panes[1], "2") : []),
    ]);
  }

  // The difference of the two maps, where they are between the same tokens.
  compare() {
    const both = this.panes.map((pane) => pane.inside.shown);
    const asked = (this.comparing = {});
    this.difference.hidden = this.panes.length < 2 || !both.every(Boolean);
    this.differing = null;
    if (this.difference.hidden) return;
    const [a, b] = both;
    const same = String(a.rows) === String(b.rows) && String(a.keys) === String(b.keys);
    const small = a.loaded && b.loaded;
    this.map.root.hidden = !same || !small;
    const counts = this.panes.map(({ inside: { group, state } }) => {
      if (state.layer === null) return group.layers * group.heads;
      if (state.head === null) return group.heads;
      return 1;
    });
    this.why.textContent = !same
      ? "The two maps are not between the same tokens: there is no difference cell by cell."
      : small
      ? counts[0] === counts[1]
        ? ""
        : `The left map is of ${counts[0]} head${counts[0] > 1 ? "s" : ""}, the right one of ${
          counts[1]
        }: a mean of many heads is softer than one head.`
      : "These texts are too long for a difference map.";
    if (!same || !small || this.comparing !== asked) return;
    const weights = a.loaded.weights.map((row, i) => row.map((x, j) => b.loaded.weights[i][j] - x));
    this.differing = weights;
    const name = (pane) => `${pane.model?.name ?? pane.state.model} (${pane.inside.title()})`;
    this.map.call(`${name(this.panes[1])} − ${name(this.panes[0])}`, this.panes[0].inside.map.axes);
    this.map.show(whole(a.rows, a.keys, weights, largest(weights)), true);
  }

  caption() {
    const parts = this.panes.map((pane) => pane.caption());
    return {
      title: `${this.title}: ${[...new Set(parts.map((one) => one.title))].join(" | ")}`,
      source: parts.map((one) => one.source).join(" | "),
      file: [this.name, ...parts.map((one) => one.file)].join("-"),
    };
  }

  figures() {
    const [left, right] = this.panes.map((pane) => pane.figures());
    return right
      ? [
        part(`Left: ${this.panes[0].caption().source}`),
        ...left,
        part(`Right: ${this.panes[1].caption().source}`),
        ...right,
        this.differing ? part("Difference: right minus left") : null,
        this.differing ? this.map.svg() : null,
      ]
      : left;
  }

  async data() {
    const all = await Promise.all(this.panes.map((pane) => pane.data()));
    return all.length === 1 ? all[0] : { panes: all, difference: this.differing };
  }
}
