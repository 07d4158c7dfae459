/**
 * Train: runs while they run, or afterwards: losses and measurements, samples, statistics of every
 * head, the trained model.
 */

import { get } from "../api.js";
import { LINES } from "../colours.js";
import { Curves, equal } from "../curves.js";
import { choose, h, number, slide } from "../dom.js";
import { View } from "../view.js";

const EVERY = 2000; // milliseconds between two requests for new records
const MOST = 6; // runs to compare
const NOT_DRAWN = ["step", "seconds", "rate", "share"]; // numbers of a record that have no curve
const OPTIMISER = [
  ["lr", "Learning rate", "learning rate", false],
  ["norm", "Norm of the gradient", "L2 norm", true],
]; // prefix (of several players lr_NAME), title, unit, logarithmic
const MEASURED = {
  near: ["generated points near a mode", "share of points"],
  modes: ["modes with enough generated points", "modes"],
  information: ["mutual information of outputs and labels", "nats"],
  f1: ["macro F1", "score from 0 to 1"],
  bleu: ["BLEU", "score from 0 to 100"],
  chrf: ["chrF", "score from 0 to 100"],
}; // title, unit
const KINDS = [
  ["entropy", "entropy of the weights", "nats"],
  ["distance", "mean distance to the keys", "tokens"],
  ["sink", "weight on the first token", "share of the weight"],
];
const SAMPLE = [
  ["given", "given"],
  ["written", "model"],
  ["wanted", "data"],
];
const OPEN = {
  translate: "Translate with this model",
  write: "Write with this model",
  read: "Read with this model",
};

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
    this.list = h("ul", { class: "runs", "aria-label": "Runs" });
    this.several = h("input", {
      type: "checkbox",
      id: "several",
      onchange: () => {
        if (!this.several.checked) this.pick(this.chosen().slice(0, 1));
      },
    });
    this.shipped = h("p", { class: "shipped", hidden: true });
    this.empty = h("p", { class: "empty", hidden: true });
    this.made = h("div", { class: "made" });
    this.measures = h("div", { class: "panels" });
    this.details = h("div", { class: "row", hidden: true });
    this.samples = h(
      "section",
      { hidden: true },
      h("h2", {}, "Samples during training"),
      this.slider = slide("samples after step", {
        min: 0,
        max: 0,
        step: 1,
        value: 0,
        show: (i) => this.sampled?.[i]?.step.toLocaleString("en") ?? "",
        change: (i) => {
          this.choice.sample = i === this.sampled.length - 1 ? null : this.sampled[i].step;
          this.remember();
          this.sample(i);
        },
      }),
      this.texts = h("ul", { class: "samples", "aria-label": "Samples" }),
    );
    this.heads = h(
      "section",
      { hidden: true },
      h("h2", {}, "Statistics of every head during training"),
      this.kinds = choose(
        "measure",
        KINDS.map(([kind, name, unit]) => [
          kind,
          unit.startsWith("share") ? name : `${name} (${unit})`,
        ]),
        this.choice.kind,
        (kind) => {
          this.choice.kind = kind;
          this.remember(true);
          this.draw();
        },
      ),
      this.perHead = h("div", { class: "panels" }),
    );
    this.blocks = h(
      "section",
      { hidden: true },
      h("h2", {}, "Gradients and outputs of every block"),
      this.perBlock = h("div", { class: "panels" }),
    );
    this.scroller = h("div", { class: "scroller", onscroll: () => this.more() }, this.list);
    new ResizeObserver(() => this.more()).observe(this.list);
    this.root.append(
      this.activity.root,
      h(
        "div",
        { class: "beside" },
        h(
          "div",
          { class: "choices" },
          h("label", { class: "tick" }, this.several, "Compare several runs"),
          this.scroller,
        ),
        h(
          "div",
          {},
          this.shipped,
          this.empty,
          this.measures,
          this.made,
          this.details,
          this.samples,
          this.heads,
          this.blocks,
        ),
      ),
    );
  }

  enter(state) {
    this.open = true;
    if (Object.keys(state).length) {
      const runs = (state.runs ?? "").split(",").filter(Boolean).slice(0, MOST);
      const sample = Number(state.sample ?? NaN);
      this.choice = {
        runs: [...new Set(runs)],
        kind: KINDS.some(([kind]) => kind === state.kind) ? state.kind : "entropy",
        sample: Number.isInteger(sample) ? sample : null,
        about: state.about ?? null,
      };
      this.kinds.querySelector("select").value = this.choice.kind;
      this.several.checked = this.choice.runs.length > 1;
      this.drawn = null;
    }
    return this.refresh();
  }

  leave() {
    this.open = false;
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
      const chosen = this.chosen();
      await Promise.all(chosen.filter((run) => !run.error).map((run) => this.read(run.id)));
      if (this.turn !== turn) return;
      this.draw();
      this.remember();
      const gone = this.choice.runs.filter((id) => !runs.some((run) => run.id === id));
      this.report(
        [
          gone.length
            ? `There ${
              gone.length > 1 ? `are no runs ${listed(gone)}` : `is no run ${gone[0]}`
            } here${runs.length ? ": choose one from the list" : ""}.`
            : "",
          ...chosen
            .filter((run) => run.error)
            .map((run) => `The run ${run.name} cannot be read: ${run.error}.`),
        ]
          .filter(Boolean)
          .join(" "),
      );
    } catch (trouble) {
      // the frame tells when the server does not answer
      if (this.turn === turn && !trouble.offline) this.report(trouble.message);
    } finally {
      if (this.turn === turn) this.timer = setTimeout(() => this.refresh(), EVERY);
    }
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
      own.length = 0;
      this.series[id] = {};
      this.drawn = null;
    } // resumed from an earlier step
    const series = (this.series[id] ??= {});
    for (const one of found.records) {
      own.push(one);
      for (const [name, value] of Object.entries(one)) {
        if ((value === null || typeof value === "number") && !NOT_DRAWN.includes(name)) {
          (series[name] ??= []).push([one.step, value]);
        }
      }
    }
  }

  // The chosen runs that exist, each with a colour that it keeps while it is chosen.
  chosen() {
    const runs = this.choice.runs
      .map((id) => this.runs?.find((run) => run.id === id))
      .filter(Boolean);
    const kept = {};
    for (const { id } of runs) if (this.colours[id] !== undefined) kept[id] = this.colours[id];
    for (const { id } of runs) {
      kept[id] ??= LINES.findIndex((_, i) => !Object.values(kept).includes(i));
    }
    this.colours = kept;
    return runs;
  }

  show() {
    const chosen = this.chosen();
    const key = JSON.stringify([this.runs, this.colours]);
    if (key === this.listed) return;
    this.listed = key;
    const focused = this.list.contains(document.activeElement)
      ? document.activeElement.dataset.run
      : null;
    this.list.replaceChildren(...this.runs.map((run) => this.card(run)));
    this.reveal();
    if (focused) this.list.querySelector(`[data-run="${focused}"]`)?.focus({ preventScroll: true });
    const example = this.runs.find((run) => run.example)?.example;
    this.shipped.hidden = !example;
    if (example) {
      this.shipped.replaceChildren(
        h("b", {}, "An example that ships: "),
        h("code", {}, example),
        ". To see your own trainings, start the explorer with their folder: ",
        h("code", {}, "clearhead explore --runs runs"),
      );
    }
    this.several.closest("label").hidden = this.runs.length < 2;
    this.empty.hidden = chosen.length > 0;
    this.empty.replaceChildren(
      ...(this.runs.length ? ["No run is chosen."] : [
        "There are no trainings in this folder yet. This one appears here as soon as it has written its first record: ",
        h("code", {}, "clearhead train configs/reverse.toml"),
      ]),
    );
  }

  // Scroll the list to the first chosen run, once per choice; the page does not move.
  reveal() {
    const key = String(this.choice.runs);
    const node = this.list.querySelector("[aria-pressed=true]");
    if (this.revealed === key || !node) return;
    this.revealed = key;
    const { scroller } = this;
    const top = node.getBoundingClientRect().top - this.list.getBoundingClientRect().top;
    const over = top + node.offsetHeight - scroller.clientHeight;
    if (top < scroller.scrollTop || over > scroller.scrollTop) {
      scroller.scrollTop = Math.max(0, top - 60);
    }
  }

  // Whether the list of runs goes on above or below what is seen of it.
  more() {
    const { scrollTop, scrollHeight, clientHeight, classList } = this.scroller;
    classList.toggle("above", scrollTop > 4);
    classList.toggle("below", scrollHeight - clientHeight - scrollTop > 4);
  }

  card(run) {
    const colour = this.colours[run.id];
    const bar = h("span", { class: "done" });
    bar.style.setProperty("width", `${100 * (run.steps ? Math.min(run.step / run.steps, 1) : 0)}%`);
    return h(
      "li",
      {},
      h(
        "button",
        {
          type: "button",
          "aria-pressed": colour !== undefined,
          "data-run": run.id,
          onclick: (event) =>
            this.toggle(
              run.id,
              this.several.checked || event.shiftKey || event.ctrlKey || event.metaKey,
            ),
        },
        h(
          "span",
          { class: "who" },
          h("i", {
            class: "dot",
            "aria-hidden": "true",
            style: colour === undefined ? {} : { background: LINES[colour] },
          }),
          h("b", {}, run.name),
          run.error ? null : h("span", { class: `state ${run.state}` }, run.state),
        ),
        run.error ? h("small", {}, run.error) : [
          h(
            "small",
            {},
            [subject(run), run.objective && `objective ${run.objective}`]
              .filter(Boolean)
              .join(" · "),
          ),
          Object.keys(run.players).length
            ? h(
              "small",
              {},
              `players: ${
                Object.entries(run.players)
                  .map(([name, model]) => (model ? `${name} (${model})` : name))
                  .join(", ")
              }`,
            )
            : null,
          h(
            "small",
            {},
            `${progress(run)}${
              run.loss === null
                ? ""
                : ` · ${words(run.losses[0])} ${number(run.loss)} ${unitOf(run, run.losses[0])}`
            }`.trim(),
          ),
          bar,
        ],
      ),
    );
  }

  toggle(id, more) {
    if (!more) return this.pick([id]);
    this.several.checked = true;
    const known = this.chosen().map((run) => run.id);
    const runs = known.includes(id) ? known.filter((one) => one !== id) : [...known, id];
    if (runs.length > MOST) {
      this.frame.say(
        `At most ${MOST} runs are compared: ${this.chosen()[0].name} is no longer chosen.`,
      );
    }
    this.pick((runs.length ? runs : [id]).slice(-MOST));
  }

  pick(runs) {
    Object.assign(this.choice, {
      runs: runs.map((run) => run.id ?? run),
      sample: null,
      about: null,
    });
    this.remember(true);
    this.show();
    return this.refresh();
  }

  // The panels of the chosen runs as [{ title, unit, log, lines }]: each loss and its validation,
  // other measurements,
  // other numbers, then the optimiser. Runs whose units differ have panels of their own.
  panels() {
    const runs = this.chosen();
    const has = (run, name) => this.series[run.id]?.[name];
    const losses = unique(runs.flatMap((run) => run.losses));
    const names = unique(runs.flatMap((run) => Object.keys(this.series[run.id] ?? {})));
    const optimiser = OPTIMISER.map(([prefix, ...rest]) => [
      names.filter((name) => name === prefix || name.startsWith(`${prefix}_`)),
      prefix,
      ...rest,
    ]);
    const first = losses.flatMap((name) => [name, `valid_${name}`]);
    const valid = names.filter((name) => name.startsWith("valid_") && !first.includes(name));
    const others = names.filter(
      (name) => ![...first, ...valid, ...optimiser.flatMap(([some]) => some)].includes(name),
    );
    const found = [];
    for (const name of [...first, ...valid, ...others].filter((one) => names.includes(one))) {
      const own = runs.filter((run) => has(run, name));
      const units = unique(own.map((run) => unitOf(run, name)));
      for (const unit of units) {
        found.push({
          title: titleOf(name) + (units.length > 1 ? ` (${unit || "unit unknown"})` : ""),
          unit: (unit || (units.length > 1 ? "unit unknown" : words(name.replace(/^valid_/, "")))) +
            apart(
              own.filter((run) => unitOf(run, name) === unit),
              unit,
            ),
          log: !others.includes(name) && !/^(share|score)/.test(unit) && !name.endsWith("accuracy"),
          lines: own
            .filter((run) => unitOf(run, name) === unit)
            .map((run) => ({
              name: run.name,
              run: run.id,
              colour: this.colours[run.id],
              points: has(run, name),
            })),
        });
      }
    }
    for (const [some, prefix, title, unit, log] of optimiser) {
      const lines = runs.flatMap((run) =>
        players(
          some
            .filter((name) => has(run, name))
            .map((name) => [name.slice(prefix.length + 1), has(run, name)]),
        ).map(([player, points], dash) => ({
          name: [
            ...(runs.length > 1 || !player ? [run.name] : []),
            ...(player ? [player] : []),
          ].join(": "),
          run: run.id,
          colour: this.colours[run.id],
          dash,
          points,
        }))
      );
      if (lines.length) {
        found.push({
          title: lines.length === 1 && lines[0].name === "all players"
            ? `${title} (all players)`
            : title,
          unit,
          log,
          lines,
        });
      }
    }
    return found;
  }

  draw() {
    const chosen = this.chosen();
    const detailed = chosen.filter(({ id }) =>
      this.records[id]?.some((one) => one.inside || one.samples)
    );
    const run = detailed.find(({ id }) => id === this.choice.about) ?? detailed[0];
    const records = this.records[run?.id] ?? [];
    this.models(chosen);
    const key = JSON.stringify([
      this.choice.kind,
      run?.id,
      this.colours,
      chosen.map(({ id }) => this.records[id]?.length),
    ]);
    if (key === this.drawn) return;
    this.drawn = key;
    this.place(this.measures, this.panels());
    this.detail(detailed, run);
    const inside = records
      .filter((one) => one.inside && Object.keys(one.inside).length)
      .map((one) => [one.step, byPlayer(one.inside)]);
    this.sampled = records.filter((one) => one.samples?.length);
    this.follow();
    const prefix = (player) =>
      [chosen.length > 1 ? run.name : "", player]
        .filter(Boolean)
        .map((one) => `${one}: `)
        .join("");
    const [kind, name, unit] = KINDS.find(([one]) => one === this.choice.kind);
    const every = unique(inside.flatMap(([, all]) => Object.keys(all))).map((player) => [
      player,
      inside.filter(([, all]) => all[player]).map(([step, all]) => [step, all[player]]),
    ]);
    this.place(
      this.perHead,
      every.flatMap(([player, looks]) =>
        unique(looks.flatMap(([, one]) => Object.keys(one)))
          .filter((one) => one.endsWith(`.${kind}`))
          .map((one) => ({
            title: `${prefix(player)}${one.slice(0, -kind.length - 1)}, ${name}`,
            unit,
            log: false,
            tall: 180,
            lines: (looks.find(([, look]) => look[one])?.[1][one] ?? []).map((_, head) => ({
              name: `head ${head}`,
              points: looks.map(([step, look]) => [step, look[one]?.[head] ?? null]),
            })),
          }))
      ),
      true,
    );
    this.heads.hidden = !every.some(([, looks]) =>
      looks.some(([, one]) =>
        Object.keys(one).some((key) => KINDS.some(([kind]) => key.endsWith(`.${kind}`)))
      )
    );
    this.place(
      this.perBlock,
      every.flatMap(([player, looks]) => {
        const of = prefix(player);
        const gradient = unique(looks.flatMap(([, one]) => Object.keys(one.gradient ?? {})));
        const output = unique(
          looks.flatMap(([, one]) =>
            Object.keys(one).filter((key) => typeof one[key] === "number")
          ),
        );
        return [
          {
            title: `${of}norm of the gradient of every block`,
            unit: "L2 norm",
            log: true,
            lines: gradient.map((block) => ({
              name: block === "rest" ? "all else" : block,
              points: looks.map(([step, one]) => [step, one.gradient?.[block] ?? null]),
            })),
          },
          {
            title: `${of}output of every block`,
            unit: "root mean square",
            log: true,
            lines: output.map((block) => ({
              name: block,
              points: looks.map(([step, one]) => [step, one[block] ?? null]),
            })),
          },
        ]
          .filter(({ lines }) => lines.length)
          .map((one) => ({ ...one, title: of ? one.title : capital(one.title) }));
      }),
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
    const shown = panels.map(
      ({ title, unit, log, tall }) => (this.curves[`${title} ${unit} ${log}`] ??= new Curves({
        title,
        unit,
        log,
        tall,
        label: "step",
      })),
    );
    const same = shown.length === parent.children.length &&
      shown.every((one, i) => one.root === parent.children[i]);
    if (!same) parent.replaceChildren(...shown.map((one) => one.root));
    const values = shared
      ? panels
        .flatMap(({ lines }) => lines.flatMap(({ points }) => points.map(([, y]) => y)))
        .filter((y) => y !== null)
      : [];
    const limits = values.length
      ? values.reduce(([a, b], y) => [Math.min(a, y), Math.max(b, y)], [Infinity, -Infinity])
      : null;
    panels.forEach(({ lines }, i) =>
      shown[i].show(lines, { limits, named: this.chosen().length > 1 })
    );
    parent.panels = panels.map((panel, i) => ({ ...panel, figure: shown[i] }));
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
    this.texts.replaceChildren(
      ...this.sampled[at].samples.map((one) =>
        h(
          "li",
          {},
          h(
            "dl",
            {},
            SAMPLE.map(([key, name]) => [h("dt", {}, name), h("dd", { class: key }, one[key])]),
          ),
        )
      ),
    );
  }

  // Offer the trained models, or say why they cannot be used.
  async models(runs) {
    const key = JSON.stringify(runs.map((run) => [run.id, run.finished, run.state]));
    if (this.offering === key) return;
    this.offering = key;
    const lines = await Promise.all(runs.filter((run) => !run.error).map((run) => this.model(run)));
    if (this.offering === key) {
      this.made.replaceChildren(...lines.filter(Boolean).map((line) => h("p", {}, line)));
    }
  }

  async model(run) {
    if (run.example) {
      return [
        "The model of this example does not ship: ",
        h("code", {}, `clearhead train ${run.example}`),
        " trains it.",
      ];
    }
    if (!run.finished) {
      return {
        running: null,
        finished: `The folder of ${run.name} has no model.`,
        stopped:
          `${run.name} stopped before its last step: the command that started it resumes it.`,
        failed:
          `${run.name} failed: ${run.problem}. Train it again in another folder with other settings, such as a smaller learning rate.`,
      }[run.state];
    }
    try {
      const own = await get("models/one", { model: `run-${run.id}` });
      const why = own.error ?? own.why ?? "it neither translates nor writes nor reads";
      if (!own.kinds.length) {
        return `The model of ${run.name} ${own.error ? "cannot be opened" : "fits no view"}: ${
          why.replace(/\.$/, "")
        }.`;
      }
      const early = run.model_step !== null && run.model_step < run.step;
      return [
        `The model of ${run.name}${
          early
            ? ` is of step ${run.model_step.toLocaleString("en")}${
              run.best
                ? `, the best by ${titleOf(run.best).replace("Validation: ", "validation ")}`
                : ""
            }`
            : ""
        }: `,
        own.kinds.map((kind) =>
          h(
            "a",
            { class: "chip", href: `#${kind}?model=${own.id}` },
            OPEN[kind] ?? `Open in ${capital(kind)}`,
          )
        ),
      ];
    } catch (trouble) {
      this.offering = null; // ask again
      return trouble.offline ? null : `The model of ${run.name} cannot be used: ${trouble.message}`;
    }
  }

  caption() {
    const runs = this.chosen();
    const names = runs.map(({ name }) => name);
    const about = runs.map(
      (run) =>
        `${run.name}: ${
          [
            subject(run),
            run.objective && `objective ${run.objective}`,
            progress(run),
            run.state,
            run.example && `an example that ships, ${run.example}`,
          ].filter(Boolean).join(", ")
        }`,
    );
    return {
      title: names.length > 1 ? `Training runs ${listed(names)}` : `Training run ${names[0] ?? ""}`,
      source: about.join("; "),
      file: ["train", ...names].join("-"),
    };
  }

  // The panels on screen.
  shown() {
    return [
      this.measures,
      ...(this.heads.hidden ? [] : [this.perHead]),
      ...(this.blocks.hidden ? [] : [this.perBlock]),
    ].flatMap((parent) => parent.panels ?? []);
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

const words = (name) => name.replaceAll("_", " ");
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const listed = (names) => `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
const unique = (list) => [...new Set(list)];
const subject = ({ model, data }) =>
  model && data ? `${model} on ${data}` : (model ?? (data ? `data ${data}` : ""));
const progress = (run) =>
  `step ${run.step.toLocaleString("en")}${
    run.steps ? ` of ${run.steps.toLocaleString("en")}` : ""
  }`;

function titleOf(name) {
  if (!name.startsWith("valid_")) return capital(words(name));
  const own = name.slice(6);
  return `Validation: ${MEASURED[own]?.[0] ?? words(own)}`;
}

// The unit of a number of a run: of a loss, that of its validation; of a share, also what it is a
// share of; "" if it is not known.
function unitOf(run, name) {
  const own = run.measurements[name] ?? run.measurements[`valid_${name}`];
  if (!own) return "";
  const counted = run.measurements[`valid_${run.losses[0]}`]?.unit.split("/")[1];
  return (
    MEASURED[name.replace(/^valid_/, "")]?.[1] ??
      (own.unit === "share" && counted ? `share of ${counted}s` : own.unit)
  );
}

// Whether two runs count in the same tokens, as far as that is known.
function sameTokens(one, two) {
  if (!one || !two) return true;
  if (one.files && two.files) return one.files === two.files;
  return ["vocab", "kind"].every(
    (key) => one[key] === null || two[key] === null || one[key] === two[key],
  );
}

// What is said beside the unit of numbers per token, if the runs do not count in the same tokens.
const apart = (runs, unit) =>
  /token/.test(unit) && runs.some((run) => !sameTokens(run.tokens, runs[0].tokens))
    ? " (different tokens: not comparable)"
    : "";

// The lines of players: one for all if they are equal.
function players(lines) {
  return lines.length > 1 && lines.every(([, points]) => equal(points, lines[0][1]))
    ? [["all players", lines[0][1]]]
    : lines.map(([player, points]) => [words(player), points]);
}

// The record of probes by player; of one network, "".
function byPlayer(inside) {
  const nested = !inside.gradient &&
    Object.values(inside).every((one) => one && typeof one === "object" && !Array.isArray(one));
  return nested ? inside : { "": inside };
}
