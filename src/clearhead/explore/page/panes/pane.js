/** Pane: one model on one input, with its form, result and figures. */

import { Activity, sentence } from "../activity.js";
import { button, choose } from "../controls.js";
import { h } from "../dom.js";
import { clamp, total } from "../numbers.js";
import { familyName, grouped, sizeOf } from "./model_menu.js";

const KEPT = 20; // results that Back and Forward show without asking the server again
const LINE = 110; // characters per line of the text area, roughly
// keys of a state that are null or a number
const WHOLE_NUMBERS = ["layer", "head", "at", "channel"];

const isObject = (value) => value !== null && typeof value === "object";

/** The state of an address, in the types of `start`; what cannot be read is as in `start`. */
function parsed(start, given) {
  const state = structuredClone(start);
  for (const [key, usual] of Object.entries(start)) {
    const text = given[key];
    if (text === undefined || text === "") continue;
    if (typeof usual === "number" || WHOLE_NUMBERS.includes(key)) {
      const x = Number(text);
      if (Number.isFinite(x)) state[key] = x;
    } else if (isObject(usual)) {
      try {
        const value = JSON.parse(text);
        if (isObject(value)) state[key] = value;
      } catch {
        /* as usual */
      }
    } else {
      state[key] = text;
    }
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
    Object.assign(this, { view, frame: view.frame, result: null, controls: {} });
    this.state = structuredClone(this.constructor.START);
    this.results = new Map(); // by request
    this.activity = new Activity({ stopped: () => this.stopped() });
    this.choice = h("div", { class: "choice" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Examples" });
    const grow = () => this.grow();
    this.input = h("textarea", { rows: 1, spellcheck: "false", dir: "auto", oninput: grow });
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
    const { KIND } = this.constructor;
    this.coming ??= this.frame
      .known(KIND, this.state.model)
      .then((all) => this.offer(all))
      .catch((trouble) => {
        this.coming = null;
        throw trouble;
      });
    return this.coming;
  }

  offer(all) {
    const retrained = ({ id, version }) => this.known?.[id] && this.known[id].version !== version;
    if (all.some(retrained)) this.results.clear();
    this.known = byId(all);
    if (!this.model) this.state.model = this.usual(all)?.id ?? "";
    this.menu();
    this.suggest();
  }

  menu() {
    const options = grouped(Object.values(this.known), sizeOf);
    const change = (id) => this.chooseModel(id);
    this.controls.model = choose("model", options, this.state.model, change);
    this.choice.replaceChildren(this.controls.model);
  }

  // The models of runs that have finished since, or are gone.
  async relist() {
    const trained = await this.frame.trained(this.constructor.KIND);
    const all = Object.values(this.known);
    const before = all.filter((model) => model.trained);
    const key = (list) => JSON.stringify(list.map(({ id, version }) => [id, version]).sort());
    if (key(trained) === key(before)) return;
    // what is known of a model stays while its run has not changed, or while it is on screen
    const same = (a, b) => a.id === b.id && a.version === b.version;
    const stays = (model) =>
      model.id === this.state.model || trained.some((found) => same(found, model));
    const kept = before.filter(stays);
    const added = trained.filter((model) => !kept.some(({ id }) => id === model.id));
    this.known = byId([...all.filter((model) => !model.trained), ...added, ...kept]);
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
    const { HINT } = this.constructor;
    const examples = this.model?.examples ?? [];
    this.about.textContent = this.model?.note ? sentence({ message: this.model.note }) : "";
    this.about.hidden = !this.model?.note;
    if (HINT) this.input.placeholder = this.model && !examples.length ? HINT : "";
    const chips = examples.map((text) => {
      const take = () => {
        this.input.value = text;
        this.run();
      };
      return button(text, take, { class: "chip" });
    });
    this.chips.replaceChildren(...chips);
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
    Object.assign(this.state, parsed(this.constructor.START, given));
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
    this.complete(given);
    this.sync();
    this.ran = { model: this.state.model, text: this.input.value };
    const known = this.results.get(JSON.stringify(this.request()));
    if (!known) return this.run(false);
    this.activity.cancel();
    this.clear();
    this.finish(known);
  }

  // What the address leaves out: the settings that this model starts with, and its first example.
  complete(given) {
    const { START, INPUT } = this.constructor;
    for (const [key, value] of Object.entries(this.initial())) {
      if (!(key in given) && value !== START[key]) this.state[key] = value;
    }
    if (INPUT in given || this.input.value) return;
    this.input.value = this.given = this.model.examples?.[0] ?? "";
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
    const lines = this.input.value.split("\n");
    const rows = total(lines.map((line) => Math.ceil((line.length + 1) / LINE)));
    this.input.rows = clamp(rows, 1, 6);
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
    const work = (signal, say) => this.work(signal, say, performance.now());
    await this.activity.run(this.constructor.DOING, work);
  }

  async work(signal, say, began) {
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
    this.keep(key, result);
    this.finish(result, say);
  }

  keep(key, result) {
    this.results.delete(key); // so that it becomes the newest
    this.results.set(key, result);
    if (this.results.size > KEPT) this.results.delete(this.results.keys().next().value);
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

  // Compute the result again, because the server no longer holds it.
  again() {
    this.results.clear();
    this.run(false);
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
    if (!model) return "";
    const parameters = (model.parameters ?? 0).toLocaleString("en");
    return `${model.name} (${familyName(model)}, ${parameters} parameters)`;
  }
}

const byId = (models) => Object.fromEntries(models.map((model) => [model.id, model]));
