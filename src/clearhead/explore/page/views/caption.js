/** Caption: what an image shows, in words, and where the model looked for each of them. */

import { Answers } from "../answers.js";
import { lines, picture, post } from "../api.js";
import { h, segments, slide } from "../dom.js";
import { headTitle } from "../heads.js";
import { ImageMap } from "../image.js";
import { ImagePane, ImageView, mean, shaped } from "../image_pane.js";
import { LitImage, scaleOf } from "../light.js";
import { tableFigure } from "../small_figures.js";
import { WordStrip } from "../strip.js";

const SHORT = 3; // letters of words such as "a", "the" and "of", which no one asks about first
const SMALL = [
  "map",
  "small maps",
  "attention weight",
  "Where every head looks for the chosen word, each up to its own largest weight (colours: square root).",
];
// what a map shows: its name, the unit of its numbers, and a sentence
const KINDS = {
  attention: [
    "attention",
    "attention weight",
    "Where the decoder looks before it writes the word: it depends on the image and the words before, not on the word itself. The picture is smoothed between places; pointing at a place reads its weight.",
  ],
  evidence: [
    "evidence",
    "share of the evidence",
    "Which places speak for the word: its probability if the decoder sees one place alone, divided by the sum over all places. The picture is smoothed between places.",
  ],
};

class CaptionPane extends ImagePane {
  static KIND = "caption";
  static SHIPPED = ["captioner", "captioner-rnn"];
  static EXAMPLE = { model: "captioner", image: "photographer" };
  static DOING = "Writing…";
  static NONE =
    "There is no captioner here: start the explorer with the folder of one: clearhead explore path/to/captioner";
  static START = {
    model: "",
    image: "",
    text: "",
    beams: 4,
    answer: 0,
    shown: "",
    layer: null,
    head: null,
    at: null,
    colouring: "map",
    next: {},
  };

  constructor(view) {
    super(view, [SMALL]);
    this.controls.beams = slide("beams", {
      min: 1,
      max: 8,
      step: 1,
      value: this.state.beams,
      change: (x) => this.set("beams", x),
    });
    this.own = h("input", {
      type: "search",
      "aria-label": "A word or a caption of your own",
      placeholder: "a man with a camera",
      spellcheck: "false",
      dir: "auto",
      maxlength: 500,
      autocomplete: "off",
    });
    this.go.textContent = "Caption";
    this.form = h(
      "form",
      {
        class: "ask",
        onsubmit: (event) => {
          event.preventDefault();
          this.submit();
        },
      },
      h("div", { class: "row" }, this.choice, this.drop.root, this.chips),
      h(
        "div",
        { class: "row" },
        h(
          "label",
          { class: "field own" },
          h("span", {}, "a word or caption of your own"),
          this.own,
        ),
        this.controls.beams,
        this.go,
        this.activity.root,
      ),
    );
    this.answers = new Answers(
      "Captions, the best first",
      "log-probability divided by a power of the length",
      (i) => {
        Object.assign(this.state, { answer: i, at: null, shown: "" });
        this.view.remember(true);
        this.show(this.result);
      },
    );
    this.remark = h("p", { class: "remark", hidden: true });
    this.image = new LitImage({ size: 330, what: "attention weight" });
    this.strip = new WordStrip({
      pick: (at) => this.view.pickWord(this, at),
      lit: (at) => {
        if (this.shown) this.drawWord(at ?? this.word);
      },
    });
    this.what = h("div", { class: "row" });
    this.about = h("p", { class: "note" });
    this.body = h(
      "section",
      { class: "inside sight", hidden: true },
      h("div", { class: "left" }, this.image.root),
      h(
        "div",
        { class: "right" },
        h("div", { class: "words" }, this.what, this.strip.root, this.about),
        h("div", { class: "detail" }, this.heads.root),
      ),
    );
    this.root = h("div", { class: "pane" }, this.form, this.answers.root, this.remark, this.body);
  }

  sync() {
    this.own.value = this.state.text;
    super.sync();
  }
  renew() {
    Object.assign(this.state, { answer: 0, at: null });
  }
  pickModel(id) {
    Object.assign(this.state, {
      model: id,
      answer: 0,
      shown: "",
      layer: null,
      head: null,
      at: null,
    });
    this.suggest();
    this.run();
  }
  request() {
    return {
      model: this.state.model,
      image: this.state.image,
      beams: this.state.beams,
      ...(this.state.text ? { text: this.state.text } : {}),
    };
  }

  // Caption the image again, with what is in the form. The other pane gets the same words.
  submit() {
    this.view.say(this.own.value.trim());
  }

  // Look for these words; an empty text is none.
  say(text) {
    if (text !== this.state.text) Object.assign(this.state, { answer: 0, shown: "", at: null });
    this.state.text = this.own.value = text;
    this.run();
  }

  // What the user asked for is played word by word; what an address says is shown at once.
  run(fresh = true) {
    this.fresh = fresh;
    return super.run(fresh);
  }

  clear() {
    this.controller?.abort();
    Object.assign(this, { partial: null, look: null, shown: null });
    this.strip.clear();
    this.answers.clear();
    this.remark.hidden = this.body.hidden = true;
    this.heads.forget();
    this.image.show({ overlay: null, image: null });
  }

  async compute(request, signal, say) {
    const began = performance.now();
    const result = (this.partial = { request, captions: [], looks: null, first: null });
    for await (const event of lines("caption", request, signal)) {
      if (event.waiting) say(`${event.waiting} before you…`);
      if (event.captions) {
        result.first ??= performance.now() - began;
        Object.assign(result, event);
        this.answers.list(event.captions);
      }
    }
    result.seen = await picture("looks/seen", { look: result.looks[0].id }, signal);
    return result;
  }

  // After Stop: inspect the best caption so far.
  async stopped() {
    const result = this.partial;
    const best = result?.captions.find((one) => !one.given);
    if (!best?.ids.length) return;
    await this.activity.run(
      "Inspecting what was written…",
      async (signal) => {
        const { model, image } = result.request;
        const { caption, look } = await post(
          "given-caption",
          { model, image, ids: best.ids },
          signal,
        );
        const seen = await picture("looks/seen", { look: look.id }, signal);
        this.state.answer = 0;
        this.result = { ...result, captions: [caption], looks: [look], seen, stopped: true };
        this.activity.say("Stopped: what was written before can be inspected.");
        this.fresh = false;
        this.show(this.result);
      },
      "stopped",
    );
  }

  summary({ captions, first, seconds }) {
    const n = captions.filter((one) => !one.given).length;
    return `${n} caption${n === 1 ? "" : "s"} in ${
      Math.round(1000 * (seconds ?? 0))
    } ms, the first word after ${Math.round(first ?? 0)} ms.`;
  }

  get chosen() {
    return this.result?.captions[this.state.answer] ?? null;
  }
  get group() {
    return this.look?.groups[0] ?? null;
  }

  // What is shown of a word: attention, unless the model has none or the words are the user's own.
  get kind() {
    return this.group &&
        (this.state.shown === "attention" ||
          (this.state.shown !== "evidence" && !this.chosen.given))
      ? "attention"
      : "evidence";
  }

  show(result) {
    const { state } = this;
    if (!Number.isInteger(state.answer) || !result.captions[state.answer]) state.answer = 0;
    const one = result.captions[state.answer];
    const said = [];
    this.answers.list(result.captions, state.answer);
    this.open(result.looks[state.answer]);
    if (one.unknown.length) {
      said.push(
        `The model does not know ${
          one.unknown.map((word) => `“${word}”`).join(", ")
        }: it reads <unk> there, which stands for any rare word, and the score says little.`,
      );
    }
    if (one.cut && !result.stopped) {
      said.push("The caption was longer than the limit: its end is missing.");
    }
    if (!one.words.length) said.push("This caption has no words.");
    if (!this.group) {
      said.push(
        "This model has no attention: it reads the image as one vector. The maps show the evidence for each word.",
      );
    }
    this.remark.textContent = said.join(" ");
    this.remark.hidden = !said.length;
    this.body.hidden = !one.words.length;
    if (this.body.hidden) return;
    this.suggest();
    this.choices();
    this.draw().then(() => {
      if (
        this.fresh &&
        this.result === result &&
        !matchMedia("(prefers-reduced-motion: reduce)").matches
      ) {
        this.strip.play();
      }
      this.fresh = false;
    });
  }

  // The kind of map, and the buttons of the strip.
  choices() {
    const kinds = Object.entries(KINDS).filter(([id]) => id !== "attention" || this.group);
    this.segments = kinds.length > 1
      ? segments(
        "maps of",
        kinds.map(([id, [name, , about]]) => [id, name, about]),
        this.kind,
        (to) => {
          this.state.shown = to;
          this.strip.pause();
          this.changed();
        },
      )
      : null;
    this.what.replaceChildren(...[this.segments, ...this.strip.controls].filter(Boolean));
  }

  // The number of the shown word: the chosen one, or at first the longer word whose map differs
  // most from the mean of all.
  get word() {
    const { at } = this.state;
    const { look } = this;
    const all = this.shown.maps.map((map) => map.flat());
    if (Number.isInteger(at) && at >= 0 && at < all.length) return at;
    if (this.first?.look !== look) {
      const means = all[0].map((_, i) => all.reduce((sum, map) => sum + map[i] / all.length, 0));
      const long = look.words.some((word) => word.length > SHORT);
      const far = all.map((map, n) =>
        long && look.words[n].length <= SHORT
          ? -1
          : map.reduce((sum, x, i) => sum + Math.abs(x - means[i]), 0)
      );
      this.first = { look, at: far.indexOf(Math.max(...far)) };
    }
    return this.first.at;
  }

  async draw() {
    const asked = (this.asked = {});
    try {
      const { kind, look, group, state } = this;
      const every = kind === "attention" ? await this.ask("wordmaps", { group: group.name }) : null;
      const evidence = every ? null : await this.ask("evidence", {});
      if (this.asked !== asked) return;
      if (every) {
        this.slices = this.slices?.of === every
          ? this.slices
          : { of: every, words: look.words.map((_, i) => slice(every, i)) };
      }
      if (every && !(state.layer < every.shape[0])) state.layer = state.head = null;
      const key = JSON.stringify([look.id, kind, every ? [state.layer, state.head] : null]);
      if (this.shown?.key !== key) {
        const maps = every
          ? this.slices.words.map((one) =>
            shaped(
              mean(one, state.layer, state.head).subarray(group.columns.special.length),
              group.columns.grid,
            )
          )
          : look.words.map((_, i) =>
            shaped(
              evidence.data.subarray(i * evidence.shape[1] * evidence.shape[2]),
              evidence.shape.slice(1),
            )
          );
        this.shown = {
          key,
          kind,
          maps,
          every,
          evidence,
          range: scaleOf(maps),
          grid: [maps[0].length, maps[0][0].length],
        };
      }
      this.segments?.set(kind);
      this.about.textContent = KINDS[kind][2];
      const at = this.word;
      this.shown.at = at;
      if (every) this.drawHeads(this.slices.words[at], ["map", "entropy", "maximum"]);
      else this.heads.hide();
      this.strip.show({
        image: this.result.seen,
        words: look.words,
        maps: this.shown.maps,
        range: this.shown.range,
        what: KINDS[kind][1],
        title: `“${this.chosen.text}”: ${this.title()}`,
        at,
      });
      this.drawWord(at);
    } catch (trouble) {
      if (trouble.status === 404) return this.again();
      return this.fail(trouble);
    }
    this.view.compare();
  }

  // Light the image by the map of one word.
  drawWord(at) {
    this.strip.choose(at);
    this.image.range = this.shown.range;
    this.image.call(`“${this.look.words[at]}”: ${this.title()}`, KINDS[this.shown.kind][1]);
    this.image.show({ overlay: this.shown.maps[at], image: this.result.seen, at: this.image.at });
  }

  // What the maps show.
  title() {
    const { group, kind, state } = this;
    return kind === "attention"
      ? `attention, ${headTitle(group.layers, group.heads, state.layer, state.head)}`
      : "evidence at each place";
  }

  // Show another word.
  take(at) {
    this.state.at = at;
    this.changed();
  }

  caption() {
    const one = this.chosen;
    const { kind } = this;
    return {
      title: `${this.named()}${one ? ` → “${one.text}”` : ""}`,
      source: [
        this.source(),
        one ? (one.given ? "a given caption" : `${this.state.beams} beams`) : "",
        this.shown ? `${this.title()} · chosen word “${this.look.words[this.shown.at]}”` : "",
      ]
        .filter(Boolean)
        .join(" · "),
      file: [this.state.model, this.named(), kind === "attention" ? this.headName() : kind].join(
        "-",
      ),
    };
  }

  figures() {
    if (!this.shown) return [];
    return [
      this.strip.svg(),
      tableFigure(
        "Captions",
        this.result.captions.map((one) => [
          one.score.toFixed(2),
          `${one.text}${one.given ? " (given)" : ""}`,
        ]),
      ),
      this.heads.root.hidden ? null : this.heads.svg(),
    ];
  }

  data() {
    const { shown, look } = this;
    const maps = shown && {
      of: shown.kind,
      title: this.title(),
      words: look.words,
      chosen: shown.at,
      grid: shown.grid,
      range: shown.range,
      weights: shown.maps,
      ...(shown.every
        ? {
          every_head: { shape: shown.every.shape, weights: shown.every.data },
          heads: this.heads.told,
        }
        : {}),
    };
    return {
      ...this.state,
      image_name: this.named(),
      seen: look?.seen ?? null,
      captions: this.result?.captions ?? null,
      maps: maps ?? null,
    };
  }
}

// The weights of one word (layers, heads, keys) of those of all words (layers, heads, words, keys).
function slice({ data, shape: [layers, heads, words, keys] }, word) {
  const own = new Float32Array(layers * heads * keys);
  for (let i = 0; i < layers * heads; i++) {
    own.set(data.subarray((i * words + word) * keys, (i * words + word + 1) * keys), i * keys);
  }
  return { data: own, shape: [layers, heads, keys] };
}

export class Caption extends ImageView {
  constructor(frame) {
    super(
      frame,
      "caption",
      "Caption",
      "A captioner writes a sentence about an image: each word is shown with where the decoder looked before it.",
      CaptionPane,
    );
  }

  differenceMap() {
    return new ImageMap({ size: 340, patchwise: true });
  }
  leave() {
    for (const pane of this.panes) pane.strip.pause();
  }

  // The same words for all panes.
  say(text) {
    for (const pane of this.panes) pane.say(text);
  }

  // A word was chosen: the other pane shows the same one, if its caption has it.
  pickWord(pane, at) {
    const words = pane.look.words;
    const before = words.slice(0, at).filter((word) => word === words[at]).length;
    for (const one of this.panes) {
      const same = one === pane
        ? [at]
        : (one.shown ? one.look.words : []).flatMap((word, i) => (word === words[at] ? [i] : []));
      if (same.length) one.take(one === pane ? at : same[Math.min(before, same.length - 1)]);
    }
  }

  // The difference of the maps of the same word.
  compare() {
    const both = this.panes.map((pane) => pane.shown);
    this.difference.hidden = this.panes.length < 2 || !both.every(Boolean);
    this.differing = null;
    if (this.difference.hidden) return;
    const [a, b] = both;
    const [left, right] = this.panes.map((pane, i) => pane.look.words[both[i].at]);
    const same = left === right && a.kind === b.kind && String(a.grid) === String(b.grid);
    this.map.root.hidden = !same;
    this.why.textContent = left !== right
      ? `The left map is of “${left}”, the right one of “${right}”: choose a word that both captions have to see the difference of its maps.`
      : a.kind !== b.kind
      ? "Attention and evidence are not the same: there is no difference place by place."
      : !same
      ? `The grids are ${a.grid.join(" × ")} and ${
        b.grid.join(" × ")
      }: there is no difference place by place.`
      : "";
    if (!same) return;
    this.differing = a.maps[a.at].map((row, y) => row.map((x, i) => b.maps[b.at][y][i] - x));
    this.map.call(
      `“${left}”: ${this.panes[1].state.model} (${this.panes[1].title()}) − ${
        this.panes[0].state.model
      } (${this.panes[0].title()})`,
      `difference: ${KINDS[a.kind][1]}`,
    );
    this.map.show({ overlay: this.differing, image: null });
  }
}
