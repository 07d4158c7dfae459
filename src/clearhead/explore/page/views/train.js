// Train: the runs in a folder while they run: curves, statistics of every head, samples, and the trained model.

import { get } from "../api.js";
import { Curves } from "../curves.js";
import { choose, h, number, slide } from "../dom.js";

const EVERY = 2000; // milliseconds between two requests for new records
const NOT_DRAWN = ["step", "seconds", "rate", "share"]; // numbers of a record that have no curve
const OPTIMISER = [["lr", "Learning rate", false], ["norm", "Norm of the gradient", true]]; // prefix, title, logarithmic; of several networks lr_NAME
const KINDS = [["entropy", "entropy, nats"], ["distance", "mean distance, tokens"], ["sink", "weight on the first token"]];
const SAMPLE = [["given", "read"], ["written", "written"], ["wanted", "in the data"]];

export class Train {
  constructor(frame, state) {
    this.frame = frame;
    this.state = { runs: state.runs ? state.runs.split(",") : [], kind: KINDS.some(([kind]) => kind === state.kind) ? state.kind : "entropy", sample: state.sample ? Number(state.sample) : null };
    this.list = h("ul", { class: "runs", "aria-label": "Runs" });
    this.several = h("input", { type: "checkbox", id: "several", checked: this.state.runs.length > 1 });
    this.curves = h("div", { class: "panels" });
    this.inside = h("section", { hidden: true }, h("h2", {}, "What every head did"), choose("measure", KINDS, this.state.kind, (kind) => { this.state.kind = kind; this.remember(); this.draw(); }), (this.heads = h("div", { class: "panels" })));
    this.wrote = h("section", { hidden: true }, h("h2", {}, "What it wrote"), (this.when = h("div")), (this.texts = h("ul", { class: "samples", "aria-label": "Samples" })));
    this.made = h("div", { class: "row" });
    this.root = h("div", { class: "view train" }, h("h1", {}, "Train"), h("p", { class: "lead" }, "Trainings in the folder that the explorer was started with, as they go. Choose one, or several to compare."), h("div", { class: "beside" }, h("div", {}, h("label", { class: "tick" }, this.several, "several at once"), this.list), h("div", {}, this.made, this.curves, this.wrote, this.inside)));
    this.records = {}; // by run
    this.numbers = {}; // by run: the names of the numbers in its records
    this.figures = {};
  }

  async enter() {
    this.on = true;
    await this.refresh();
  }

  leave() { this.on = false; clearTimeout(this.timer); }
  remember() { this.frame.remember("train", { runs: this.state.runs.join(",") || null, kind: this.state.kind === "entropy" ? null : this.state.kind, sample: this.state.sample }); }

  async refresh() {
    clearTimeout(this.timer);
    try {
      this.runs = await get("runs");
      if (!this.runs.length) {
        this.list.replaceChildren(h("li", { class: "empty" }, "There are no trainings here. Start the explorer with their folder: ", h("code", {}, "clearhead explore --runs runs")));
        return;
      }
      const known = this.runs.map((run) => run.id);
      this.state.runs = this.state.runs.filter((id) => known.includes(id));
      if (!this.state.runs.length) this.state.runs = [(this.runs.find((run) => !run.error) ?? this.runs[0]).id];
      this.show();
      await Promise.all(this.state.runs.map((id) => this.read(id)));
      this.draw();
      this.remember();
    } catch (problem) { this.frame.problem(problem); }
    if (this.on) this.timer = setTimeout(() => this.refresh(), EVERY);
  }

  async read(id) {
    const own = (this.records[id] ??= []), found = await get("runs/one", { run: id, since: own.length });
    if (found.since < own.length) own.length = 0;
    const names = (this.numbers[id] ??= new Set());
    for (const one of found.records) {
      own.push(one);
      for (const [name, value] of Object.entries(one)) if (value === null || typeof value === "number") names.add(name);
    }
  }

  show() {
    const key = JSON.stringify([this.runs, this.state.runs]);
    if (key === this.shown) return;
    this.shown = key;
    const at = this.list.contains(document.activeElement) ? document.activeElement.dataset.run : null;
    this.list.replaceChildren(...this.runs.map((run) => {
      const on = this.state.runs.includes(run.id), share = run.steps ? Math.min(run.step / run.steps, 1) : 0;
      const bar = h("span", { class: "weight" });
      bar.style.setProperty("width", `${100 * share}%`);
      return h("li", {}, h("button", { type: "button", "aria-pressed": on, "data-run": run.id, onclick: (event) => this.pick(run.id, this.several.checked || event.shiftKey || event.ctrlKey || event.metaKey) },
        h("b", {}, run.id), h("small", {}, [run.model, run.data].filter(Boolean).join(" · ")), h("small", {}, run.error ?? `step ${run.step.toLocaleString()}${run.steps ? ` of ${run.steps.toLocaleString()}` : ""}${run.finished ? ", finished" : ""}${run.loss === null ? "" : ` · ${words(run.losses[0])} ${number(run.loss)}`}`), bar));
    }));
    if (at) this.list.querySelector(`[data-run="${at}"]`)?.focus();
  }

  pick(id, more) {
    if (more) this.state.runs = this.state.runs.includes(id) ? this.state.runs.filter((one) => one !== id) : [...this.state.runs, id].slice(-6);
    else this.state.runs = [id];
    this.state.sample = null;
    this.frame.fine();
    this.remember();
    this.refresh();
  }

  // The curves of the chosen runs, as [name, title, logarithmic]: losses, validation measurements, other numbers, then
  // learning rates and gradient norms.
  measures() {
    const runs = this.state.runs.map((id) => this.runs.find((run) => run.id === id)).filter(Boolean);
    const losses = [...new Set(runs.flatMap((run) => run.losses))], about = Object.assign({}, ...runs.map((run) => run.measurements));
    const names = [...new Set(runs.flatMap((run) => [...(this.numbers[run.id] ?? [])]))].filter((name) => !losses.includes(name) && !NOT_DRAWN.includes(name));
    const optimiser = OPTIMISER.flatMap(([prefix, title, log]) => names.filter((name) => name === prefix || name.startsWith(`${prefix}_`)).map((name) => [name, name === prefix ? title : `${title}, ${words(name.slice(prefix.length + 1))}`, log]));
    const valid = names.filter((name) => name.startsWith("valid_")), known = [...valid, ...optimiser.map(([name]) => name)];
    return [
      ...losses.map((name) => [name, capital(words(name)), true]),
      ...valid.map((name) => [name, `Validation ${words(name.slice(6))}${about[name] && about[name].unit !== name.slice(6) ? ` (${about[name].unit})` : ""}`, about[name]?.unit !== "share" && !name.endsWith("accuracy")]),
      ...names.filter((name) => !known.includes(name)).map((name) => [name, capital(words(name)), false]),
      ...optimiser,
    ];
  }

  draw() {
    const figure = (key, options) => (this.figures[key] ??= new Curves(options));
    const shown = [];
    for (const [key, title, log] of this.measures()) {
      const lines = this.state.runs.map((id, i) => ({ name: id, colour: i, points: (this.records[id] ?? []).filter((one) => one[key] !== undefined).map((one) => [one.step, one[key]]) })).filter(({ points }) => points.length);
      if (!lines.length) continue;
      const one = figure(`${key} ${title}`, { title, log });
      shown.push([one, lines]);
    }
    place(this.curves, shown.map(([one]) => one.root));
    for (const [one, lines] of shown) one.show(lines);
    this.write((this.records[this.state.runs[0]] ?? []).filter((one) => one.samples?.length));
    const looks = (this.records[this.state.runs[0]] ?? []).filter((one) => one.inside && Object.keys(one.inside).length);
    this.inside.hidden = !looks.length;
    const layers = looks.length ? Object.keys(looks[0].inside).filter((name) => name.endsWith(`.${this.state.kind}`)) : [];
    const every = layers.map((name) => {
      const one = figure(name, { title: name.replace(`.${this.state.kind}`, ""), tall: 150 });
      return [one, looks[0].inside[name].map((_, head) => ({ name: `head ${head}`, points: looks.map((look) => [look.step, look.inside[name]?.[head] ?? null]) }))];
    });
    place(this.heads, every.map(([one]) => one.root));
    for (const [one, lines] of every) one.show(lines);
    this.models();
  }

  // Show the samples of the last step, or of the chosen one.
  write(told) {
    this.wrote.hidden = !told.length;
    const key = JSON.stringify([this.state.runs[0], told.length, told.at(-1)?.step]);
    if (!told.length || key === this.told) return;
    this.told = key;
    const show = (at) => this.texts.replaceChildren(...told[at].samples.map((one) => h("li", {}, h("dl", {}, SAMPLE.map(([key, name]) => [h("dt", {}, name), h("dd", {}, one[key])])))));
    const chosen = told.findIndex((one) => one.step === this.state.sample), last = told.length - 1, at = chosen < 0 ? last : chosen;
    this.when.replaceChildren(slide("step", { min: 0, max: last, step: 1, value: at, show: (i) => told[i].step.toLocaleString(), change: (i) => { this.state.sample = i === last ? null : told[i].step; this.remember(); show(i); } }));
    show(at);
  }

  async models() {
    const run = this.runs.find((one) => one.id === this.state.runs[0]);
    if (this.sampled === `${run?.id} ${run?.finished}`) return;
    this.sampled = `${run?.id} ${run?.finished}`;
    this.made.replaceChildren();
    if (!run?.finished) return;
    const own = await get("models/one", { model: `run-${run.id}` });
    this.made.replaceChildren(...own.kinds.map((kind) => h("a", { class: "chip", href: `#${kind}?model=${own.id}` }, kind === "translate" ? "Translate with this model" : "Write with this model")));
  }

  pictures() { return [...this.curves.children, ...(this.inside.hidden ? [] : this.heads.children)].map((root) => Object.values(this.figures).find((one) => one.root === root)?.svg()); }
  data() { return { view: "train", ...this.state, records: Object.fromEntries(this.state.runs.map((id) => [id, this.records[id] ?? []])) }; }
}

const words = (name) => name.replaceAll("_", " ");
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// Replace the children only if they differ, so that a figure that is being read keeps its state.
function place(parent, children) {
  if (children.length === parent.children.length && children.every((one, i) => one === parent.children[i])) return;
  parent.replaceChildren(...children);
}
