/**
 * Read: an encoder on a text: attention, masked tokens, classes, similar tokens, and the similarity
 * of whole texts.
 */

import { get, lines, post } from "../api.js";
import { h, percent, spelt } from "../dom.js";
import { Inside } from "../inside.js";
import { HeatMap, whole } from "../map.js";
import { Pane, PanedView } from "../pane.js";
import { barsFigure, tableFigure } from "../small_figures.js";

const TEXTS = [
  "A dog runs across the field.",
  "A puppy is running over the grass.",
  "She is reading a book.",
  "He reads a novel.",
  "The train was late again.",
];

class ReadPane extends Pane {
  static KIND = "read";
  static DOING = "Reading…";
  static EMPTY = "Type a text to read.";
  static NONE =
    "There is no encoder here: start the explorer with the folder of one, for instance BERT's: clearhead explore path/to/bert";
  static START = {
    model: "",
    text: "",
    group: "self",
    layer: null,
    head: null,
    by: "pieces",
    at: null,
    scale: null,
    colouring: "map",
    texts: TEXTS,
  };

  constructor(view) {
    super(view);
    this.input.setAttribute("aria-label", "The text to read");
    this.input.classList.add("sentence");
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.run();
      }
    });
    this.go.textContent = "Read";
    this.mask = h(
      "button",
      {
        type: "button",
        class: "mask",
        hidden: true,
        title: "Put the mask token in place of the selection, or at the cursor, and read the text",
        onclick: () => this.insertMask(),
      },
      "Insert a mask",
    );
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
      h("div", { class: "row" }, this.choice, this.go, this.mask, this.activity.root),
      this.about,
      this.chips,
    );
    this.inside = new Inside({
      state: this.state,
      changed: () => this.view.remember(),
      drew: () => this.view.compare(),
      pick: () => this.tellSimilar(),
      expired: () => this.again(),
      tall: 270,
    });
    this.outputs = h("div", { class: "outputs" });
    this.similar = h("div", { class: "similar", "aria-live": "polite" });
    this.remark = h("p", { class: "remark", hidden: true });
    this.body = h(
      "section",
      { class: "inside", hidden: true },
      h(
        "div",
        { class: "left" },
        this.inside.lines.root,
        h("div", { class: "two" }, this.outputs, this.similar),
      ),
      h("div", { class: "right" }, this.inside.map.root, this.inside.heads.root),
    );
    this.list = h("textarea", {
      rows: 5,
      spellcheck: "false",
      dir: "auto",
      "aria-label": "Texts to compare, one per line",
    });
    this.alike = new HeatMap({
      title: "Similarity of texts",
      signed: true,
      fixed: 1,
      what: "cosine similarity",
      tall: 260,
      axes: ["", ""],
    });
    this.neighbours = h(
      "section",
      { class: "neighbours", hidden: true },
      h("h2", {}, "Neighbours by vector"),
      h(
        "p",
        { class: "note" },
        "Each text becomes one vector; the cosine of two vectors says how similar the model finds them.",
      ),
      h(
        "div",
        { class: "two" },
        h(
          "form",
          {
            onsubmit: (event) => {
              event.preventDefault();
              this.compareTexts();
            },
          },
          this.list,
          h("div", { class: "row" }, h("button", { type: "submit" }, "Compare")),
        ),
        this.alike.root,
      ),
    );
    this.root = h("div", { class: "pane" }, this.form, this.remark, this.body, this.neighbours);
  }

  insertMask() {
    const { value, selectionStart: from, selectionEnd: to } = this.input;
    const space = (near) => (near && /\S/.test(near) && !/[.,;:!?)”"']/.test(near) ? " " : "");
    this.input.setRangeText(
      (from && /\S/.test(value[from - 1]) ? " " : "") + this.model.mask + space(value[to]),
      from,
      to,
      "end",
    );
    this.input.focus();
    this.run();
  }

  offer(all) {
    super.offer(all);
    this.mask.hidden = !this.model?.mask;
  }
  suggest() {
    super.suggest();
    this.mask.hidden = !this.model?.mask;
  }
  again() {
    this.results.clear();
    this.run(false);
  }
  // The texts to compare: those of the address, or the model's examples if it has some without a
  // mask.
  offered() {
    const own = (this.model?.examples ?? []).filter(
      (text) => !text.includes(this.model.mask ?? "\0"),
    );
    return String(this.state.texts) === String(TEXTS) && own.length > 1 ? own : this.state.texts;
  }

  sync() {
    super.sync();
    this.list.value = this.offered().join("\n");
  }
  request() {
    return { model: this.state.model, text: this.state.text };
  }

  clear() {
    this.body.hidden = this.remark.hidden = this.neighbours.hidden = true;
    this.outputs.replaceChildren();
    this.similar.replaceChildren();
    this.similarData = null;
    this.inside.clear();
  }

  async compute(request, signal, say) {
    const result = {};
    for await (const event of lines("read", request, signal)) {
      if (event.waiting) say(`${event.waiting} before you…`);
      if (event.progress) say(`Reading: block ${event.progress[0]} of ${event.progress[1]}…`);
      if (event.cut) result.cut = event.cut;
      if (event.look) Object.assign(result, event);
    }
    return result;
  }

  stopped() {} // nothing is written before the end

  summary({ look, seconds }) {
    if (look?.reason) return `No attention to show: ${look.reason}.`;
    const n = look?.groups[0]?.rows.names.length ?? 0;
    return `${n} token${n === 1 ? "" : "s"} read in ${(seconds ?? 0).toFixed(1)} s.`;
  }

  show(result) {
    const { look, fill, classes, masks, cut } = result;
    this.remark.hidden = !cut;
    if (cut) {
      this.remark.textContent = `The model reads at most ${
        cut.read.toLocaleString("en")
      } of this text's ${cut.of.toLocaleString("en")} tokens: the rest was left out.`;
    }
    this.body.hidden = !look?.groups.length;
    if (this.body.hidden) return;
    const bars = (list, label) =>
      h(
        "ul",
        { class: "bars" },
        list.map(([name, share]) => {
          const bar = h("span", { class: "weight" });
          bar.style.setProperty("width", `${Math.max(0.5, 100 * share)}%`);
          return h("li", {}, label(name), h("span", {}, percent(share)), bar);
        }),
      );
    const token = (name) => h("code", {}, spelt(name));
    this.outputs.replaceChildren(
      ...(classes
        ? [
          h("h2", {}, "Class of the text"),
          bars(classes, (name) => h("span", { class: "label" }, name)),
        ]
        : []),
      ...(fill ?? []).flatMap((list, i) => [
        h("h2", {}, fill.length > 1 ? `Mask ${i + 1}, token ${masks[i] + 1}` : "The masked token"),
        bars(list, token),
      ]),
      ...(fill && !fill.length
        ? [
          h(
            "p",
            { class: "note" },
            `Replace a word by ${this.model.mask} to see what the model predicts there.`,
          ),
        ]
        : []),
    );
    if (this.state.at === null) {
      this.state.at = masks?.[0] ?? Math.min(1, look.groups[0].rows.names.length - 1);
    }
    this.inside.open(look).catch((trouble) => this.fail(trouble));
    this.tellSimilar();
    if (this.model.embeds !== false) this.compareTexts();
  }

  // The five tokens that are most similar to the chosen one: [similarity, number of the token].
  alikeTokens(similarity) {
    return similarity
      .map((x, i) => [x, i])
      .filter(([, i]) => i !== this.state.at)
      .sort((a, b) => b[0] - a[0])
      .slice(0, 5);
  }

  async tellSimilar() {
    const { at } = this.state;
    const look = this.inside.look ?? this.result?.look;
    if (at === null || !look) return;
    try {
      const { similarity } = await get("looks/similar", { look: look.id, at });
      if (this.state.at !== at || this.result?.look !== look) return;
      const names = look.groups[0].rows.names;
      const best = this.alikeTokens(similarity);
      this.similarData = similarity;
      this.similar.replaceChildren(
        h("h2", {}, "Tokens similar to ", h("code", {}, spelt(names[at]))),
        h(
          "ul",
          { class: "bars" },
          best.map(([x, i]) => {
            const bar = h("span", { class: "weight" });
            bar.style.setProperty("width", `${Math.max(0.5, 100 * Math.max(0, x))}%`);
            return h("li", {}, h("code", {}, spelt(names[i])), h("span", {}, x.toFixed(2)), bar);
          }),
        ),
      );
    } catch (trouble) {
      if (trouble.status === 404) this.again();
      else this.fail(trouble);
    }
  }

  async compareTexts() {
    const texts = this.list.value
      .split("\n")
      .map((text) => text.trim())
      .filter(Boolean);
    this.state.texts = texts;
    this.view.remember();
    this.neighbours.hidden = false;
    if (!texts.length) return;
    try {
      const found = await post("neighbours", { model: this.state.model, texts });
      this.vectors = found;
      this.alike.show(whole(texts, texts, found.similarity, 1));
    } catch (trouble) {
      this.fail(trouble);
    }
  }

  caption() {
    return {
      title: `“${this.state.text.slice(0, 100)}”`,
      source: `${this.source()}${this.body.hidden ? "" : ` · ${this.inside.title()}`}`,
      file: [
        this.state.model,
        this.state.layer === null
          ? "all-heads"
          : `layer${this.state.layer}${this.state.head === null ? "" : `-head${this.state.head}`}`,
      ].join("-"),
    };
  }
  figures() {
    if (this.body.hidden) return [];
    const { fill, classes, masks } = this.result;
    const bars = (text, rows, label) =>
      barsFigure(
        text,
        rows.map(([name, share]) => [label(name), share]),
        ["probability"],
      );
    return [
      ...this.inside.figures(),
      classes ? bars("Class of the text", classes, String) : null,
      ...(fill ?? []).map((rows, i) =>
        bars(
          fill.length > 1 ? `Mask ${i + 1}, token ${masks[i] + 1}` : "The masked token",
          rows,
          spelt,
        )
      ),
      this.similarData
        ? tableFigure(
          `Tokens similar to ${
            spelt(this.inside.look.groups[0].rows.names[this.state.at])
          }, by cosine`,
          this.alikeTokens(this.similarData).map(([x, i]) => [
            x.toFixed(2),
            spelt(this.inside.look.groups[0].rows.names[i]),
          ]),
        )
        : null,
      this.neighbours.hidden ? null : this.alike.svg(),
    ];
  }
  async data() {
    const { fill, classes, masks } = this.result ?? {};
    return {
      ...this.state,
      fill,
      classes,
      masks,
      similar: this.similarData ?? null,
      neighbours: this.vectors ?? null,
      attention: await this.inside.data(),
    };
  }
}

export class Read extends PanedView {
  constructor(frame) {
    super(
      frame,
      "read",
      "Read",
      "An encoder reads a whole text at once: every token attends to tokens before and after it.",
      ReadPane,
    );
  }
}
