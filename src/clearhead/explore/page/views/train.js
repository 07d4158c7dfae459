/**
 * Train: runs while they run, or afterwards: losses and measurements, samples, statistics of every
 * head, the trained model.
 */

import { get } from "../api.js";
import { LINES } from "../colours.js";
import { choose, slide } from "../controls.js";
import { h } from "../dom.js";
import { Curves } from "../figures/curves.js";
import { spread } from "../numbers.js";
import { View } from "../panes/view.js";
import { lossPanels } from "../train/panels.js";
import { blockPanels, hasHeads, headPanels, probesOf, STATISTICS } from "../train/probes.js";
import { RunList } from "../train/run_list.js";
import { modelLine } from "../train/trained_models.js";
import { listed, progress, subject, unique } from "../train/units.js";

const EVERY = 2000; // milliseconds between two requests for new records
const MOST = 6; // runs to compare
const NOT_DRAWN = ["step", "seconds", "rate", "share"]; // numbers of a record that have no curve
const SAMPLE = [
  ["given", "given"],
  ["written", "model"],
  ["wanted", "data"],
];

export class Train extends View {
  constructor(frame) {
    super(
      frame,
      "train",
      "Train",
      "Follow a training while it runs, or read it afterwards: losses, measurements, samples, and statistics of every head. Choose one run, or several to compare.",
    );
    this.choice = { runs: [], kind: "entropy", sample: null, about: null };
    this.colours = {}; // by chosen run: the number of its colour
    this.records = {}; // by run
    this.series = {}; // by run and by the name of a number: [[step, value], ...]
    this.curves = {}; // by key, so that a figure that is being read stays
    this.list = new RunList((id, more) => this.toggle(id, more || this.several.checked));
    const single = () => {
      if (!this.several.checked) this.pick(this.chosen().slice(0, 1));
    };
    this.several = h("input", { type: "checkbox", id: "several", onchange: single });
    this.shipped = h("p", { class: "shipped", hidden: true });
    this.empty = h("p", { class: "empty", hidden: true });
    this.made = h("div", { class: "made" });
    this.measures = h("div", { class: "panels" });
    this.details = h("div", { class: "row", hidden: true });
    this.makeSections();
    const { shipped, empty, measures, made, details, samples, heads, blocks } = this;
    const several = h("label", { class: "tick" }, this.several, "Compare several runs");
    const choices = h("div", { class: "choices" }, several, this.list.root);
    const shown = h("div", {}, shipped, empty, measures, made, details, samples, heads, blocks);
    this.root.append(this.activity.root, h("div", { class: "beside" }, choices, shown));
  }

  makeSections() {
    const section = (title, ...parts) => h("section", { hidden: true }, h("h2", {}, title), parts);
    this.slider = slide("samples after step", {
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      show: (i) => this.sampled?.[i]?.step.toLocaleString("en") ?? "",
      change: (i) => {
        const last = i === this.sampled.length - 1; // null: follows the training
        this.choice.sample = last ? null : this.sampled[i].step;
        this.remember();
        this.sample(i);
      },
    });
    this.texts = h("ul", { class: "samples", "aria-label": "Samples" });
    this.samples = section("Samples during training", this.slider, this.texts);
    const kinds = STATISTICS.map(([kind, name, unit]) => {
      return [kind, unit.startsWith("share") ? name : `${name} (${unit})`];
    });
    this.kinds = choose("measure", kinds, this.choice.kind, (kind) => {
      this.choice.kind = kind;
      this.remember(true);
      this.draw();
    });
    this.perHead = h("div", { class: "panels" });
    this.heads = section("Statistics of every head during training", this.kinds, this.perHead);
    this.perBlock = h("div", { class: "panels" });
    this.blocks = section("Gradients and outputs of every block", this.perBlock);
  }

  enter(state) {
    if (Object.keys(state).length) {
      const runs = (state.runs ?? "").split(",").filter(Boolean).slice(0, MOST);
      const sample = Number(state.sample ?? NaN);
      this.choice = {
        runs: unique(runs),
        kind: STATISTICS.some(([kind]) => kind === state.kind) ? state.kind : "entropy",
        sample: Number.isInteger(sample) ? sample : null,
        about: state.about ?? null,
      };
      this.kinds.set(this.choice.kind);
      this.several.checked = this.choice.runs.length > 1;
      this.drawn = null;
    }
    return this.refresh();
  }

  leave() {
    this.turn = null;
    clearTimeout(this.timer);
  }

  back() {
    this.refresh();
  }

  state() {
    const { runs, kind, sample, about } = this.choice;
    return {
      runs: runs.join(","),
      kind: kind === "entropy" ? null : kind,
      sample,
      about: about && about !== runs[0] ? about : null,
    };
  }

  // Request the list of runs and what is new of the chosen ones, again and again.
  async refresh() {
    clearTimeout(this.timer);
    const turn = (this.turn = {});
    try {
      const runs = await get("runs");
      if (this.turn !== turn) return;
      this.runs = runs;
      const usual = runs.find((run) => !run.error) ?? runs[0];
      if (!this.choice.runs.length && usual) this.choice.runs = [usual.id];
      this.show();
      const readable = this.chosen().filter((run) => !run.error);
      await Promise.all(readable.map((run) => this.read(run.id)));
      if (this.turn !== turn) return;
      this.draw();
      this.remember();
      this.report(this.problems().join(" "));
    } catch (trouble) {
      // the frame tells when the server does not answer
      if (this.turn === turn && !trouble.offline) this.report(trouble.message);
    } finally {
      if (this.turn === turn) this.timer = setTimeout(() => this.refresh(), EVERY);
    }
  }

  // Which of the chosen runs are not here, or cannot be read.
  problems() {
    const gone = this.choice.runs.filter((id) => !this.runs.some((run) => run.id === id));
    const said = [];
    if (gone.length) {
      const none = gone.length > 1 ? `are no runs ${listed(gone)}` : `is no run ${gone[0]}`;
      said.push(`There ${none} here${this.runs.length ? ": choose one from the list" : ""}.`);
    }
    for (const run of this.chosen()) {
      if (run.error) said.push(`The run ${run.name} cannot be read: ${run.error}.`);
    }
    return said;
  }

  // Show a problem, or with "" that there is none any more.
  report(text) {
    if (text === this.reported) return;
    this.reported = text;
    if (text) this.activity.fail(new Error(text));
    else this.activity.become("idle");
  }

  // Request the records that are new.
  async read(id) {
    const own = (this.records[id] ??= []);
    const since = own.length;
    const found = await get("runs/one", { run: id, since });
    if (own.length !== since) return; // another request has added them
    if (found.since < since) {
      // resumed from an earlier step
      own.length = 0;
      this.series[id] = {};
      this.drawn = null;
    }
    const series = (this.series[id] ??= {});
    for (const record of found.records) {
      own.push(record);
      for (const [name, value] of Object.entries(record)) {
        const drawn = value === null || typeof value === "number";
        if (!drawn || NOT_DRAWN.includes(name)) continue;
        series[name] ??= [];
        series[name].push([record.step, value]);
      }
    }
  }

  // The chosen runs that exist, each with a colour that it keeps while it is chosen.
  chosen() {
    const all = this.choice.runs.map((id) => this.runs?.find((run) => run.id === id));
    const runs = all.filter(Boolean);
    const kept = {};
    for (const { id } of runs) if (this.colours[id] !== undefined) kept[id] = this.colours[id];
    for (const { id } of runs) {
      kept[id] ??= LINES.findIndex((_, i) => !Object.values(kept).includes(i));
    }
    this.colours = kept;
    return runs;
  }

  // The list of runs, and what is said where there is none.
  show() {
    const chosen = this.chosen();
    const key = JSON.stringify([this.runs, this.colours]);
    if (key === this.listed) return;
    this.listed = key;
    this.list.show(this.runs, this.colours, String(this.choice.runs));
    const example = this.runs.find((run) => run.example)?.example;
    this.shipped.hidden = !example;
    this.shipped.replaceChildren(
      h("b", {}, "An example that ships: "),
      h("code", {}, example ?? ""),
      ". To see your own trainings, start the explorer with their folder: ",
      h("code", {}, "clearhead explore --runs runs"),
    );
    this.several.closest("label").hidden = this.runs.length < 2;
    this.empty.hidden = chosen.length > 0;
    const none =
      "There are no trainings in this folder yet. This one appears here as soon as it has written its first record: ";
    const how = [none, h("code", {}, "clearhead train configs/reverse.toml")];
    this.empty.replaceChildren(...(this.runs.length ? ["No run is chosen."] : how));
  }

  toggle(id, more) {
    if (!more) return this.pick([id]);
    this.several.checked = true;
    const chosen = this.chosen();
    const known = chosen.map((run) => run.id);
    const runs = known.includes(id) ? known.filter((other) => other !== id) : [...known, id];
    if (runs.length > MOST) {
      const first = chosen[0].name;
      this.frame.say(`At most ${MOST} runs are compared: ${first} is no longer chosen.`);
    }
    this.pick((runs.length ? runs : [id]).slice(-MOST));
  }

  pick(runs) {
    const ids = runs.map((run) => run.id ?? run);
    Object.assign(this.choice, { runs: ids, sample: null, about: null });
    this.remember(true);
    this.show();
    return this.refresh();
  }

  draw() {
    const chosen = this.chosen();
    const hasDetails = ({ id }) =>
      this.records[id]?.some((record) => record.inside || record.samples);
    const detailed = chosen.filter(hasDetails);
    const run = detailed.find(({ id }) => id === this.choice.about) ?? detailed[0];
    this.models(chosen);
    const lengths = chosen.map(({ id }) => this.records[id]?.length);
    const key = JSON.stringify([this.choice.kind, run?.id, this.colours, lengths]);
    if (key === this.drawn) return;
    this.drawn = key;
    this.place(this.measures, lossPanels(chosen, this.series, this.colours));
    this.detail(detailed, run);
    const records = this.records[run?.id] ?? [];
    this.sampled = records.filter((record) => record.samples?.length);
    this.follow();
    this.drawProbes(probesOf(records), chosen.length > 1 ? run?.name : "");
  }

  // Statistics of the heads and blocks of each player; of several runs, with the name of this one.
  drawProbes(probes, runName) {
    const prefix = ([player]) =>
      [runName, player]
        .filter(Boolean)
        .map((name) => `${name}: `)
        .join("");
    const { kind } = this.choice;
    const heads = probes.flatMap((probe) => headPanels(probe, kind, prefix(probe)));
    this.place(this.perHead, heads, true);
    this.heads.hidden = !probes.some(hasHeads);
    this.place(
      this.perBlock,
      probes.flatMap((probe) => blockPanels(probe, prefix(probe))),
    );
    this.blocks.hidden = !this.perBlock.children.length;
  }

  // Of which run the samples and statistics are; a choice if several have them.
  detail(detailed, run) {
    this.details.hidden = this.choice.runs.length < 2 || !run;
    const ids = detailed.map(({ id, name }) => [id, name]);
    const key = JSON.stringify([ids, run?.id]);
    if (key === this.offered) return;
    this.offered = key;
    const again = this.details.contains(document.activeElement);
    this.details.replaceChildren(
      choose("samples and statistics of the run", ids, run?.id, (id) => {
        Object.assign(this.choice, { about: id, sample: null });
        this.remember(true);
        this.draw();
      }),
    );
    if (again) this.details.querySelector("select").focus();
  }

  // Draw panels into a parent; shared: with a common range. Figures that stay are not replaced, so
  // that they can be read on.
  place(parent, panels, shared = false) {
    const shown = panels.map((panel) => this.figureOf(panel));
    const before = [...parent.children];
    const same = shown.length === before.length && shown.every(({ root }, i) => root === before[i]);
    if (!same) parent.replaceChildren(...shown.map(({ root }) => root));
    const limits = shared ? commonRange(panels) : null;
    const named = this.chosen().length > 1;
    panels.forEach(({ lines }, i) => shown[i].show(lines, { limits, named }));
    parent.panels = panels.map((panel, i) => ({ ...panel, figure: shown[i] }));
  }

  figureOf({ title, unit, log, tall }) {
    const key = `${title} ${unit} ${log}`;
    this.curves[key] ??= new Curves({ title, unit, log, tall, label: "step" });
    return this.curves[key];
  }

  // Show the samples of the last step, or of the chosen one.
  follow() {
    const last = this.sampled.length - 1;
    const chosen = this.sampled.findIndex((one) => one.step === this.choice.sample);
    const at = chosen < 0 ? last : chosen;
    this.samples.hidden = last < 0;
    if (last < 0) return;
    const input = this.slider.querySelector("input");
    const when = this.sampled[at].step.toLocaleString("en");
    input.max = last;
    input.value = at;
    input.setAttribute("aria-valuetext", when);
    this.slider.querySelector("output").textContent = when;
    this.sample(at);
  }

  sample(at) {
    const items = this.sampled[at].samples.map((sample) => {
      const texts = SAMPLE.map(([key, name]) => {
        return [h("dt", {}, name), h("dd", { class: key }, sample[key])];
      });
      return h("li", {}, h("dl", {}, texts));
    });
    this.texts.replaceChildren(...items);
  }

  // Offer the trained models, or say why they cannot be used.
  async models(runs) {
    const key = JSON.stringify(runs.map((run) => [run.id, run.finished, run.state]));
    if (this.offering === key) return;
    this.offering = key;
    const readable = runs.filter((run) => !run.error);
    const lines = await Promise.all(readable.map((run) => this.model(run)));
    if (this.offering !== key) return;
    this.made.replaceChildren(...lines.filter(Boolean).map((line) => h("p", {}, line)));
  }

  async model(run) {
    try {
      return await modelLine(run);
    } catch (trouble) {
      this.offering = null; // ask again
      return trouble.offline ? null : `The model of ${run.name} cannot be used: ${trouble.message}`;
    }
  }

  caption() {
    const runs = this.chosen();
    const names = runs.map(({ name }) => name);
    const about = runs.map((run) => {
      const facts = [subject(run), run.objective && `objective ${run.objective}`, progress(run)];
      facts.push(run.state, run.example && `an example that ships, ${run.example}`);
      return `${run.name}: ${facts.filter(Boolean).join(", ")}`;
    });
    return {
      title: names.length > 1 ? `Training runs ${listed(names)}` : `Training run ${names[0] ?? ""}`,
      source: about.join("; "),
      file: ["train", ...names].join("-"),
    };
  }

  // The panels on screen.
  shown() {
    const parents = [this.measures];
    if (!this.heads.hidden) parents.push(this.perHead);
    if (!this.blocks.hidden) parents.push(this.perBlock);
    return parents.flatMap((parent) => parent.panels ?? []);
  }

  figures() {
    return this.shown().map(({ figure }) => figure.svg());
  }

  data() {
    return {
      ...this.choice,
      runs: this.chosen().map((run) => ({ ...run, records: this.records[run.id] ?? [] })),
      panels: this.shown().map(({ title, unit, lines }) => ({
        title,
        x: "step",
        y: unit,
        lines: lines.map(({ name, points }) => ({ name, points })),
      })),
    };
  }
}

// The range of all values of some panels; null if there are none.
function commonRange(panels) {
  const points = panels.flatMap(({ lines }) => lines.flatMap((line) => line.points));
  const values = points.map(([, y]) => y).filter((y) => y !== null);
  return values.length ? spread(values) : null;
}
