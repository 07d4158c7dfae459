/** Translate: translations as they are written, with the attention of each of their tokens. */

import { Answers } from "../answers.js";
import { lines, post } from "../api.js";
import { h, slide } from "../dom.js";
import { Inside } from "../inside.js";
import { Pane, PanedView } from "../pane.js";

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
    this.input.setAttribute("aria-label", "The text to translate");
    this.input.classList.add("sentence");
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.run();
      }
    });
    this.go.textContent = "Translate";
    this.controls.beams = slide("beams", {
      min: 1,
      max: 8,
      step: 1,
      value: this.state.beams,
      change: (x) => this.set("beams", x),
    });
    this.form = h(
      "form",
      {
        class: "ask",
        onsubmit: (event) => {
          event.preventDefault();
          this.run();
        },
      },
      this.input,
      h("div", { class: "row" }, this.choice, this.controls.beams, this.go, this.activity.root),
      this.about,
      this.chips,
    );
    this.sentences = h("ol", { class: "sentences", "aria-label": "Sentences", hidden: true });
    this.answers = new Answers(
      "Translations, the best first",
      "log-probability divided by length",
      (i) => {
        Object.assign(this.state, { answer: i, at: null });
        this.view.remember(true);
        this.show(this.result);
      },
    );
    this.remark = h("p", { class: "remark", hidden: true });
    this.inside = new Inside({
      state: this.state,
      changed: () => this.view.remember(),
      drew: () => this.view.compare(),
      expired: () => this.again(),
      tall: 270,
    });
    this.body = h(
      "section",
      { class: "inside", hidden: true },
      h(
        "div",
        { class: "left" },
        this.inside.lines.root,
        this.inside.controls,
        this.inside.heads.root,
      ),
      h("div", { class: "right" }, this.inside.map.root),
    );
    this.root = h(
      "div",
      { class: "pane" },
      this.form,
      this.sentences,
      this.answers.root,
      this.remark,
      this.body,
    );
  }

  renew() {
    Object.assign(this.state, { sentence: 0, answer: 0, at: null });
  }
  again() {
    this.results.clear();
    this.run(false);
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
    if (!result?.texts.length || (!result.beams?.[0]?.ids?.length && !result.parts.length)) return;
    await this.activity.run(
      "Inspecting what was written…",
      async (signal) => {
        if (!result.parts[result.at] && result.beams?.[0]?.ids?.length) {
          const { translation, look } = await post(
            "align",
            {
              model: result.request.model,
              text: result.texts[result.at],
              ids: result.beams[0].ids,
            },
            signal,
          );
          result.parts[result.at] = {
            translations: [
              { ...translation, text: result.beams[0].text, score: result.beams[0].score },
            ],
            looks: [look],
            stopped: true,
          };
        }
        Object.assign(this.state, {
          sentence: Math.min(result.at ?? 0, result.parts.length - 1),
          answer: 0,
        });
        const done = result.parts.filter((part) => part && !part.stopped).length;
        this.activity.say(
          result.texts.length > 1
            ? `Stopped after ${done} of ${result.texts.length} sentences: what was written can be inspected.`
            : "Stopped: what was written before can be inspected.",
        );
        this.result = result;
        this.show(result);
      },
      "stopped",
    );
  }

  summary(result) {
    const n = result.parts[0]?.translations.length ?? 0;
    const what = result.texts.length > 1
      ? `${result.texts.length} sentences`
      : `${n} translation${n === 1 ? "" : "s"}`;
    return `${what} in ${Math.round(1000 * (result.seconds ?? 0))} ms, the first word after ${
      Math.round(result.first ?? 0)
    } ms.`;
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

  listSentences(result) {
    const focused = this.sentences.contains(document.activeElement)
      ? document.activeElement.dataset.at
      : null;
    this.sentences.hidden = false;
    this.sentences.replaceChildren(
      ...result.texts.map((text, i) =>
        h(
          "li",
          {},
          h(
            "button",
            {
              type: "button",
              "data-at": i,
              "aria-pressed": i === this.state.sentence,
              disabled: !result.parts[i],
              onclick: () => {
                Object.assign(this.state, { sentence: i, answer: 0, at: null });
                this.view.remember(true);
                this.show(result);
              },
            },
            h("span", { dir: "auto" }, text),
            h(
              "span",
              { class: "said", dir: "auto" },
              result.parts[i]?.translations[0]?.text ?? "…",
            ),
          ),
        )
      ),
    );
    if (focused !== null) this.sentences.querySelector(`[data-at="${focused}"]`)?.focus();
  }

  open({ translations, looks }) {
    const one = translations[this.state.answer];
    const look = looks[this.state.answer];
    const said = [];
    if (one.cut?.source) {
      said.push(
        `The model reads at most ${one.cut.source[0].toLocaleString("en")} of this sentence's ${
          one.cut.source[1].toLocaleString("en")
        } tokens: the rest was left out.`,
      );
    }
    if (one.cut?.target) {
      said.push("The translation was longer than the limit: its end is missing.");
    }
    this.body.hidden = !look?.groups.length;
    if (this.body.hidden) {
      this.inside.clear();
      if (one.text) {
        said.push("This model has no attention: its encoder gives the decoder one vector.");
      }
    } else this.inside.open(look).catch((trouble) => this.fail(trouble));
    this.remark.textContent = said.join(" ");
    this.remark.hidden = !said.length;
  }

  caption() {
    const part = this.result?.parts[this.state.sentence];
    const one = part?.translations[this.state.answer];
    return {
      title: one ? `“${this.result.texts[this.state.sentence]}” → “${one.text}”` : "",
      source: `${this.source()} · ${this.state.beams} beams${
        this.body.hidden
          ? ""
          : ` · ${this.inside.title()}, between ${this.inside.shown?.words ? "words" : "tokens"}`
      }`,
      file: [
        this.state.model,
        this.body.hidden
          ? null
          : this.state.layer === null
          ? "all-heads"
          : `layer${this.state.layer}${this.state.head === null ? "" : `-head${this.state.head}`}`,
      ]
        .filter(Boolean)
        .join("-"),
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
