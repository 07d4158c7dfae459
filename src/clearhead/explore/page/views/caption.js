/** Caption: what an image shows, in words, and where the model looked for each of them. */

import { lines, picture, post } from "../api.js";
import { headName, headTitle } from "../attention/head_grid.js";
import { attentionMaps, byWord, evidenceMaps, mostTelling } from "../caption/word_maps.js";
import { form, segments, slide } from "../controls.js";
import { h } from "../dom.js";
import { tableFigure } from "../figures/small_figures.js";
import { ImageMap } from "../images/image_map.js";
import { ImagePane, ImageView } from "../images/image_pane.js";
import { LitImage, scaleOf } from "../images/lit_image.js";
import { WordStrip } from "../images/word_strip.js";
import { counted } from "../numbers.js";
import { Answers } from "../panes/answers.js";

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
const UNSEEN =
  "This model has no attention: it reads the image as one vector. The maps show the evidence for each word.";

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
    this.form = this.makeForm();
    const pick = (i) => {
      Object.assign(this.state, { answer: i, at: null, shown: "" });
      this.view.remember(true);
      this.show(this.result);
    };
    const score = "log-probability divided by a power of the length";
    this.answers = new Answers("Captions, the best first", score, pick);
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
    const words = h("div", { class: "words" }, this.what, this.strip.root, this.about);
    const detail = h("div", { class: "detail" }, this.heads.root);
    this.body = h(
      "section",
      { class: "inside sight", hidden: true },
      h("div", { class: "left" }, this.image.root),
      h("div", { class: "right" }, words, detail),
    );
    this.root = h("div", { class: "pane" }, this.form, this.answers.root, this.remark, this.body);
  }

  makeForm() {
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
    const { choice, drop, chips, go, activity } = this;
    const label = h("span", {}, "a word or caption of your own");
    const own = h("label", { class: "field own" }, label, this.own);
    return form(
      "ask",
      () => this.submit(),
      h("div", { class: "row" }, choice, drop.root, chips),
      h("div", { class: "row" }, own, this.controls.beams, go, activity.root),
    );
  }

  sync() {
    this.own.value = this.state.text;
    super.sync();
  }

  renew() {
    Object.assign(this.state, { answer: 0, at: null });
  }

  pickModel(id) {
    const first = { answer: 0, shown: "", layer: null, head: null, at: null };
    Object.assign(this.state, { model: id, ...first });
    this.suggest();
    this.run();
  }

  request() {
    const { model, image, beams, text } = this.state;
    return text ? { model, image, beams, text } : { model, image, beams };
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
    const best = result?.captions.find(({ given }) => !given);
    if (!best?.ids.length) return;
    const work = async (signal) => {
      const { model, image } = result.request;
      const request = { model, image, ids: best.ids };
      const { caption, look } = await post("given-caption", request, signal);
      const seen = await picture("looks/seen", { look: look.id }, signal);
      this.state.answer = 0;
      this.result = { ...result, captions: [caption], looks: [look], seen, stopped: true };
      this.activity.say("Stopped: what was written before can be inspected.");
      this.fresh = false;
      this.show(this.result);
    };
    await this.activity.run("Inspecting what was written…", work, "stopped");
  }

  summary({ captions, first, seconds }) {
    const written = captions.filter(({ given }) => !given).length;
    const [all, word] = [1000 * (seconds ?? 0), first ?? 0].map(Math.round);
    return `${counted(written, "caption")} in ${all} ms, the first word after ${word} ms.`;
  }

  get chosen() {
    return this.result?.captions[this.state.answer] ?? null;
  }

  get group() {
    return this.look?.groups[0] ?? null;
  }

  // What is shown of a word: attention, unless the model has none or the words are the user's own.
  get kind() {
    const { shown } = this.state;
    if (!this.group || shown === "evidence") return "evidence";
    return shown === "attention" || !this.chosen.given ? "attention" : "evidence";
  }

  show(result) {
    const { state } = this;
    if (!Number.isInteger(state.answer) || !result.captions[state.answer]) state.answer = 0;
    const caption = result.captions[state.answer];
    this.answers.list(result.captions, state.answer);
    this.open(result.looks[state.answer]);
    const said = this.remarks(caption, result.stopped);
    this.remark.textContent = said.join(" ");
    this.remark.hidden = !said.length;
    this.body.hidden = !caption.words.length;
    if (this.body.hidden) return;
    this.suggest();
    this.choices();
    this.draw().then(() => {
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (this.fresh && this.result === result && !still) this.strip.play();
      this.fresh = false;
    });
  }

  remarks({ unknown, cut, words }, stopped) {
    const said = [];
    if (unknown.length) {
      const quoted = unknown.map((word) => `“${word}”`).join(", ");
      said.push(
        `The model does not know ${quoted}: it reads <unk> there, which stands for any rare word, and the score says little.`,
      );
    }
    if (cut && !stopped) said.push("The caption was longer than the limit: its end is missing.");
    if (!words.length) said.push("This caption has no words.");
    if (!this.group) said.push(UNSEEN);
    return said;
  }

  // The kind of map, and the buttons of the strip.
  choices() {
    const known = Object.entries(KINDS).filter(([id]) => id !== "attention" || this.group);
    const kinds = known.map(([id, [name, , about]]) => [id, name, about]);
    const change = (to) => {
      this.state.shown = to;
      this.strip.pause();
      this.changed();
    };
    this.segments = kinds.length > 1 ? segments("maps of", kinds, this.kind, change) : null;
    this.what.replaceChildren(...[this.segments, ...this.strip.controls].filter(Boolean));
  }

  // The number of the shown word: the chosen one, or at first the most telling one.
  get word() {
    const { at } = this.state;
    const { look, shown } = this;
    if (Number.isInteger(at) && at >= 0 && at < shown.maps.length) return at;
    if (this.first?.look !== look) this.first = { look, at: mostTelling(look.words, shown.maps) };
    return this.first.at;
  }

  async draw() {
    const asked = (this.asked = {});
    try {
      const { kind, look, group } = this;
      const attention = kind === "attention";
      const every = attention ? await this.ask("wordmaps", { group: group.name }) : null;
      const evidence = attention ? null : await this.ask("evidence", {});
      if (this.asked !== asked) return;
      this.prepare(kind, every, evidence);
      this.segments?.set(kind);
      this.about.textContent = KINDS[kind][2];
      const at = this.word;
      this.shown.at = at;
      if (every) this.drawHeads(this.slices.words[at], ["map", "entropy", "maximum"]);
      else this.heads.hide();
      const { maps, range } = this.shown;
      const title = `“${this.chosen.text}”: ${this.title()}`;
      const image = this.result.seen;
      const what = KINDS[kind][1];
      this.strip.show({ image, words: look.words, maps, range, what, title, at });
      this.drawWord(at);
    } catch (trouble) {
      if (trouble.status === 404) return this.again();
      return this.fail(trouble);
    }
    this.view.compare();
  }

  // The maps of all words, made again if they are of other heads or of another kind.
  prepare(kind, every, evidence) {
    const { look, group, state } = this;
    if (every && this.slices?.of !== every) this.slices = byWord(every);
    if (every && !(state.layer < every.shape[0])) state.layer = state.head = null;
    const key = JSON.stringify([look.id, kind, every ? [state.layer, state.head] : null]);
    if (this.shown?.key === key) return;
    const maps = every
      ? attentionMaps(this.slices.words, group, state.layer, state.head)
      : evidenceMaps(evidence);
    const grid = [maps[0].length, maps[0][0].length];
    this.shown = { key, kind, maps, every, evidence, range: scaleOf(maps), grid };
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
    if (kind !== "attention") return "evidence at each place";
    return `attention, ${headTitle(group.layers, group.heads, state.layer, state.head)}`;
  }

  // Show another word.
  take(at) {
    this.state.at = at;
    this.changed();
  }

  caption() {
    const { chosen, kind, state } = this;
    const source = [this.source()];
    if (chosen) source.push(chosen.given ? "a given caption" : `${state.beams} beams`);
    if (this.shown) {
      source.push(`${this.title()} · chosen word “${this.look.words[this.shown.at]}”`);
    }
    const maps = kind === "attention" ? headName(state) : kind;
    return {
      title: `${this.named()}${chosen ? ` → “${chosen.text}”` : ""}`,
      source: source.filter(Boolean).join(" · "),
      file: [state.model, this.named(), maps].join("-"),
    };
  }

  figures() {
    if (!this.shown) return [];
    const captions = this.result.captions.map(({ score, text, given }) => {
      return [score.toFixed(2), `${text}${given ? " (given)" : ""}`];
    });
    const heads = this.heads.root.hidden ? null : this.heads.svg();
    return [this.strip.svg(), tableFigure("Captions", captions), heads];
  }

  data() {
    return {
      ...this.state,
      image_name: this.named(),
      seen: this.look?.seen ?? null,
      captions: this.result?.captions ?? null,
      maps: this.shown ? this.savedMaps() : null,
    };
  }

  savedMaps() {
    const { shown, look } = this;
    const maps = {
      of: shown.kind,
      title: this.title(),
      words: look.words,
      chosen: shown.at,
      grid: shown.grid,
      range: shown.range,
      weights: shown.maps,
    };
    if (!shown.every) return maps;
    const { shape, data } = shown.every;
    return { ...maps, every_head: { shape, weights: data }, heads: this.heads.told };
  }
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

  // A word was chosen: the other pane shows the same one, if its caption has it; of a word that a
  // caption has several times, the one with as many before it.
  pickWord(pane, at) {
    const { words } = pane.look;
    const before = words.slice(0, at).filter((word) => word === words[at]).length;
    for (const other of this.panes) {
      if (other === pane) {
        other.take(at);
        continue;
      }
      const theirs = other.shown ? other.look.words : [];
      const same = theirs.flatMap((word, i) => (word === words[at] ? [i] : []));
      if (same.length) other.take(same[Math.min(before, same.length - 1)]);
    }
  }

  // The difference of the maps of the same word.
  compare() {
    const [left, right] = this.panes;
    this.differing = null;
    this.difference.hidden = !left.shown || !right?.shown;
    if (this.difference.hidden) return;
    const why = this.obstacle(left, right);
    this.map.root.hidden = why !== "";
    this.why.textContent = why;
    if (why) return;
    const [a, b] = [left, right].map(({ shown }) => shown.maps[shown.at]);
    this.differing = a.map((row, y) => row.map((x, i) => b[y][i] - x));
    const word = left.look.words[left.shown.at];
    const name = (pane) => `${pane.state.model} (${pane.title()})`;
    const unit = `difference: ${KINDS[left.shown.kind][1]}`;
    this.map.call(`“${word}”: ${name(right)} − ${name(left)}`, unit);
    this.map.show({ overlay: this.differing, image: null });
  }

  // Why there is no difference place by place; "" if there is one.
  obstacle(left, right) {
    const [one, two] = [left, right].map(({ look, shown }) => look.words[shown.at]);
    if (one !== two) {
      return `The left map is of “${one}”, the right one of “${two}”: choose a word that both captions have to see the difference of its maps.`;
    }
    if (left.shown.kind !== right.shown.kind) {
      return "Attention and evidence are not the same: there is no difference place by place.";
    }
    const [first, second] = [left, right].map(({ shown }) => shown.grid.join(" × "));
    if (first === second) return "";
    return `The grids are ${first} and ${second}: there is no difference place by place.`;
  }
}
