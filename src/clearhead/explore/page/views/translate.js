/** Translate: translations as they are written, with the attention of each of their tokens. */

import { lines, post } from "../api.js";
import { headName } from "../attention/head_grid.js";
import { Inside } from "../attention/inside.js";
import { button, form, slide, submitOnEnter } from "../controls.js";
import { h, keepFocus } from "../dom.js";
import { counted } from "../numbers.js";
import { Answers } from "../panes/answers.js";
import { Pane } from "../panes/pane.js";
import { PanedView } from "../panes/paned_view.js";

class TranslatePane extends Pane {
  static KIND = "translate";
  static DOING = "Translating…";
  static EMPTY = "Type a sentence to translate.";
  static HINT = "A sentence in the language that this model reads";
  static NONE = "There is no translator here: start the explorer with the folder of one.";
  static START = {
    model: "",
    text: "",
    beams: 4,
    sentence: 0,
    answer: 0,
    group: "cross",
    layer: null,
    head: null,
    by: "words",
    at: null,
    scale: null,
    colouring: "map",
    next: {},
  };

  constructor(view) {
    super(view);
    this.form = this.makeForm();
    this.sentences = h("ol", { class: "sentences", "aria-label": "Sentences", hidden: true });
    const pick = (i) => {
      Object.assign(this.state, { answer: i, at: null });
      this.view.remember(true);
      this.show(this.result);
    };
    const score = "log-probability divided by length";
    this.answers = new Answers("Translations, the best first", score, pick);
    this.remark = h("p", { class: "remark", hidden: true });
    this.inside = new Inside({
      state: this.state,
      changed: () => this.view.remember(),
      drew: () => this.view.compare(),
      expired: () => this.again(),
      tall: 270,
    });
    const { lines: tokens, controls, heads, map } = this.inside;
    this.body = h(
      "section",
      { class: "inside", hidden: true },
      h("div", { class: "left" }, tokens.root, controls, heads.root),
      h("div", { class: "right" }, map.root),
    );
    const { sentences, answers, remark, body } = this;
    this.root = h("div", { class: "pane" }, this.form, sentences, answers.root, remark, body);
  }

  makeForm() {
    this.input.setAttribute("aria-label", "The text to translate");
    this.input.classList.add("sentence");
    submitOnEnter(this.input, () => this.run());
    this.go.textContent = "Translate";
    this.controls.beams = slide("beams", {
      min: 1,
      max: 8,
      step: 1,
      value: this.state.beams,
      change: (x) => this.set("beams", x),
    });
    const row = [this.choice, this.controls.beams, this.go, this.activity.root];
    const rest = [h("div", { class: "row" }, row), this.about, this.chips];
    return form("ask", () => this.run(), this.input, ...rest);
  }

  renew() {
    Object.assign(this.state, { sentence: 0, answer: 0, at: null });
  }

  request() {
    return { model: this.state.model, text: this.state.text, beams: this.state.beams };
  }

  clear() {
    this.partial = null;
    this.sentences.replaceChildren();
    this.sentences.hidden = true;
    this.answers.clear();
    this.remark.hidden = true;
    this.body.hidden = true;
    this.inside.clear();
  }

  async compute(request, signal, say) {
    const began = performance.now();
    const result = (this.partial = { request, texts: [], parts: [], beams: null, first: null });
    for await (const event of lines("translate", request, signal)) {
      if (event.waiting) say(`${event.waiting} before you…`);
      if (event.sentences) {
        result.texts = event.sentences;
        if (event.sentences.length > 1) this.listSentences(result);
      }
      if (event.beams) {
        result.first ??= performance.now() - began;
        Object.assign(result, { beams: event.beams, at: event.sentence });
        if (result.texts.length > 1) {
          say(`Translating sentence ${event.sentence + 1} of ${result.texts.length}…`);
        }
        this.answers.list(event.beams.slice(0, this.state.beams));
      }
      if (event.translations) {
        result.parts[event.sentence] = { translations: event.translations, looks: event.looks };
        if (result.texts.length > 1) this.listSentences(result);
      }
    }
    return result;
  }

  // After Stop: inspect the best hypothesis of the sentence that was being translated.
  async stopped() {
    const result = this.partial;
    if (!result?.texts.length) return;
    const best = result.beams?.[0];
    const written = best?.ids?.length > 0;
    if (!written && !result.parts.length) return;
    const work = async (signal) => {
      if (written && !result.parts[result.at]) {
        result.parts[result.at] = await this.align(result, best, signal);
      }
      const sentence = Math.min(result.at ?? 0, result.parts.length - 1);
      Object.assign(this.state, { sentence, answer: 0 });
      const done = result.parts.filter((part) => part && !part.stopped).length;
      const of = `${done} of ${result.texts.length} sentences`;
      this.activity.say(
        result.texts.length > 1
          ? `Stopped after ${of}: what was written can be inspected.`
          : "Stopped: what was written before can be inspected.",
      );
      this.result = result;
      this.show(result);
    };
    await this.activity.run("Inspecting what was written…", work, "stopped");
  }

  // An inspection of a hypothesis as a part of the result.
  async align({ request, texts, at }, best, signal) {
    const given = { model: request.model, text: texts[at], ids: best.ids };
    const { translation, look } = await post("align", given, signal);
    const { text, score } = best;
    return { translations: [{ ...translation, text, score }], looks: [look], stopped: true };
  }

  summary({ parts, texts, seconds, first }) {
    const translations = counted(parts[0]?.translations.length ?? 0, "translation");
    const what = texts.length > 1 ? `${texts.length} sentences` : translations;
    const [all, word] = [1000 * (seconds ?? 0), first ?? 0].map(Math.round);
    return `${what} in ${all} ms, the first word after ${word} ms.`;
  }

  show(result) {
    if (!result.parts[this.state.sentence]) {
      this.state.sentence = Math.max(0, result.parts.findIndex(Boolean));
    }
    const part = result.parts[this.state.sentence];
    if (!part) return;
    if (this.state.answer >= part.translations.length) this.state.answer = 0;
    if (result.texts.length > 1) this.listSentences(result);
    this.answers.list(part.translations.slice(0, this.state.beams), this.state.answer);
    this.open(part);
  }

  listSentences({ texts, parts }) {
    const items = texts.map((text, i) => {
      const pick = () => {
        Object.assign(this.state, { sentence: i, answer: 0, at: null });
        this.view.remember(true);
        this.show(this.result ?? this.partial);
      };
      const said = parts[i]?.translations[0]?.text ?? "…";
      const both = [
        h("span", { dir: "auto" }, text),
        h("span", { class: "said", dir: "auto" }, said),
      ];
      const pressed = i === this.state.sentence;
      const more = { "data-at": i, "aria-pressed": pressed, disabled: !parts[i] };
      return h("li", {}, button(both, pick, more));
    });
    keepFocus(this.sentences, "at", () => {
      this.sentences.hidden = false;
      this.sentences.replaceChildren(...items);
    });
  }

  open({ translations, looks }) {
    const { text, cut } = translations[this.state.answer];
    const look = looks[this.state.answer];
    const said = [];
    if (cut?.source) {
      const [read, of] = cut.source.map((n) => n.toLocaleString("en"));
      const limit = `The model reads at most ${read} of this sentence's ${of} tokens`;
      said.push(`${limit}: the rest was left out.`);
    }
    if (cut?.target) said.push("The translation was longer than the limit: its end is missing.");
    this.body.hidden = !look?.groups.length;
    if (this.body.hidden) this.inside.clear();
    else this.inside.open(look).catch((trouble) => this.fail(trouble));
    if (this.body.hidden && text) {
      said.push("This model has no attention: its encoder gives the decoder one vector.");
    }
    this.remark.textContent = said.join(" ");
    this.remark.hidden = !said.length;
  }

  caption() {
    const { state, inside } = this;
    const translation = this.result?.parts[state.sentence]?.translations[state.answer];
    const source = [this.source(), `${state.beams} beams`];
    const file = [state.model];
    if (!this.body.hidden) {
      source.push(`${inside.title()}, between ${inside.shown?.words ? "words" : "tokens"}`);
      file.push(headName(state));
    }
    const text = this.result?.texts[state.sentence];
    return {
      title: translation ? `“${text}” → “${translation.text}”` : "",
      source: source.join(" · "),
      file: file.join("-"),
    };
  }

  figures() {
    return this.body.hidden ? [] : this.inside.figures();
  }

  async data() {
    return {
      ...this.state,
      sentences: this.result?.texts ?? [],
      translations: this.result?.parts.map((part) => part.translations) ?? [],
      attention: await this.inside.data(),
    };
  }
}

export class Translate extends PanedView {
  constructor(frame) {
    super(
      frame,
      "translate",
      "Translate",
      "Each word of the translation attends to the words of the source: point at a word to see which.",
      TranslatePane,
    );
  }
}
