/**
 * Read: an encoder on a text: attention, masked tokens, classes, similar tokens, and the similarity
 * of whole texts.
 */

import { get, lines, post } from "../api.js";
import { headName } from "../attention/head_grid.js";
import { HeatMap, whole } from "../attention/heat_map.js";
import { Inside } from "../attention/inside.js";
import { button, form, shareList, submitOnEnter } from "../controls.js";
import { h } from "../dom.js";
import { barsFigure, tableFigure } from "../figures/small_figures.js";
import { counted, percent, spelt } from "../numbers.js";
import { Pane } from "../panes/pane.js";
import { PanedView } from "../panes/paned_view.js";

const TEXTS = [
  "A dog runs across the field.",
  "A puppy is running over the grass.",
  "She is reading a book.",
  "He reads a novel.",
  "The train was late again.",
];
const SIMILAR = 5; // tokens that are most similar to the chosen one

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
    this.form = this.makeForm();
    this.inside = new Inside({
      state: this.state,
      changed: () => this.view.remember(),
      drew: () => this.view.compare(),
      pick: () => this.tellSimilar(),
      expired: () => this.again(),
      tall: 270,
    });
    const { lines, map, heads } = this.inside;
    this.outputs = h("div", { class: "outputs" });
    this.similar = h("div", { class: "similar", "aria-live": "polite" });
    this.remark = h("p", { class: "remark", hidden: true });
    const outputs = h("div", { class: "two" }, this.outputs, this.similar);
    this.body = h(
      "section",
      { class: "inside", hidden: true },
      h("div", { class: "left" }, lines.root, outputs),
      h("div", { class: "right" }, map.root, heads.root),
    );
    this.neighbours = this.makeNeighbours();
    this.root = h("div", { class: "pane" }, this.form, this.remark, this.body, this.neighbours);
  }

  makeForm() {
    this.input.setAttribute("aria-label", "The text to read");
    this.input.classList.add("sentence");
    submitOnEnter(this.input, () => this.run());
    this.go.textContent = "Read";
    this.mask = button("Insert a mask", () => this.insertMask(), {
      class: "mask",
      hidden: true,
      title: "Put the mask token in place of the selection, or at the cursor, and read the text",
    });
    const row = [this.choice, this.go, this.mask, this.activity.root];
    const rest = [h("div", { class: "row" }, row), this.about, this.chips];
    return form("ask", () => this.run(), this.input, ...rest);
  }

  // The similarity of whole texts.
  makeNeighbours() {
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
    const about =
      "Each text becomes one vector; the cosine of two vectors says how similar the model finds them.";
    const submit = h("div", { class: "row" }, h("button", { type: "submit" }, "Compare"));
    const texts = form(null, () => this.compareTexts(), this.list, submit);
    return h(
      "section",
      { class: "neighbours", hidden: true },
      h("h2", {}, "Neighbours by vector"),
      h("p", { class: "note" }, about),
      h("div", { class: "two" }, texts, this.alike.root),
    );
  }

  insertMask() {
    const { value, selectionStart: from, selectionEnd: to } = this.input;
    const isWord = (letter) => Boolean(letter) && /\S/.test(letter);
    const before = from && isWord(value[from - 1]) ? " " : "";
    const after = isWord(value[to]) && !/[.,;:!?)”"']/.test(value[to]) ? " " : "";
    this.input.setRangeText(before + this.model.mask + after, from, to, "end");
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

  // The texts to compare: those of the address, or the model's examples if it has some without a
  // mask.
  offered() {
    const examples = this.model?.examples ?? [];
    const own = examples.filter((text) => !text.includes(this.model.mask ?? "\0"));
    const usual = String(this.state.texts) === String(TEXTS);
    return usual && own.length > 1 ? own : this.state.texts;
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
      if (event.progress) say(`Reading: block ${event.progress.join(" of ")}…`);
      if (event.cut) result.cut = event.cut;
      if (event.look) Object.assign(result, event);
    }
    return result;
  }

  stopped() {} // nothing is written before the end

  summary({ look, seconds }) {
    if (look?.reason) return `No attention to show: ${look.reason}.`;
    const tokens = look?.groups[0]?.rows.names.length ?? 0;
    return `${counted(tokens, "token")} read in ${(seconds ?? 0).toFixed(1)} s.`;
  }

  show(result) {
    const { look, masks, cut } = result;
    this.remark.hidden = !cut;
    if (cut) {
      const [read, of] = [cut.read, cut.of].map((n) => n.toLocaleString("en"));
      const limit = `The model reads at most ${read} of this text's ${of} tokens`;
      this.remark.textContent = `${limit}: the rest was left out.`;
    }
    this.body.hidden = !look?.groups.length;
    if (this.body.hidden) return;
    this.outputs.replaceChildren(...this.outputLists(result));
    const second = Math.min(1, look.groups[0].rows.names.length - 1); // the first one is special
    this.state.at ??= masks?.[0] ?? second;
    this.inside.open(look).catch((trouble) => this.fail(trouble));
    this.tellSimilar();
    if (this.model.embeds !== false) this.compareTexts();
  }

  // The classes of the text, and what the model predicts for each mask.
  outputLists({ fill, classes, masks }) {
    const list = (rows, label) =>
      shareList(rows.map(([name, share]) => [share, label(name), percent(share)]));
    const nodes = [];
    if (classes) {
      const label = (name) => h("span", { class: "label" }, name);
      nodes.push(h("h2", {}, "Class of the text"), list(classes, label));
    }
    (fill ?? []).forEach((rows, i) => {
      const guesses = list(rows, (name) => h("code", {}, spelt(name)));
      nodes.push(h("h2", {}, maskName(masks, i)), guesses);
    });
    if (fill && !fill.length) {
      const how = `Replace a word by ${this.model.mask} to see what the model predicts there.`;
      nodes.push(h("p", { class: "note" }, how));
    }
    return nodes;
  }

  // The tokens that are most similar to the chosen one: [similarity, number of the token].
  alikeTokens(similarity) {
    const others = similarity.map((x, i) => [x, i]).filter(([, i]) => i !== this.state.at);
    return others.sort((a, b) => b[0] - a[0]).slice(0, SIMILAR);
  }

  async tellSimilar() {
    const { at } = this.state;
    const look = this.inside.look ?? this.result?.look;
    if (at === null || !look) return;
    try {
      const { similarity } = await get("looks/similar", { look: look.id, at });
      if (this.state.at !== at || this.result?.look !== look) return;
      const { names } = look.groups[0].rows;
      this.similarData = similarity;
      const rows = this.alikeTokens(similarity).map(([x, i]) => {
        return [x, h("code", {}, spelt(names[i])), x.toFixed(2)];
      });
      const title = h("h2", {}, "Tokens similar to ", h("code", {}, spelt(names[at])));
      this.similar.replaceChildren(title, shareList(rows));
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
    const inside = this.body.hidden ? "" : ` · ${this.inside.title()}`;
    return {
      title: `“${this.state.text.slice(0, 100)}”`,
      source: this.source() + inside,
      file: `${this.state.model}-${headName(this.state)}`,
    };
  }

  figures() {
    if (this.body.hidden) return [];
    const { fill, classes, masks } = this.result;
    const bars = (text, rows, label) => {
      const named = rows.map(([name, share]) => [label(name), share]);
      return barsFigure(text, named, ["probability"]);
    };
    return [
      ...this.inside.figures(),
      classes ? bars("Class of the text", classes, String) : null,
      ...(fill ?? []).map((rows, i) => bars(maskName(masks, i), rows, spelt)),
      this.similarData ? this.similarFigure() : null,
      this.neighbours.hidden ? null : this.alike.svg(),
    ];
  }

  similarFigure() {
    const { names } = this.inside.look.groups[0].rows;
    const title = `Tokens similar to ${spelt(names[this.state.at])}, by cosine`;
    const alike = this.alikeTokens(this.similarData);
    return tableFigure(
      title,
      alike.map(([x, i]) => [x.toFixed(2), spelt(names[i])]),
    );
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

// Which mask a list of guesses is for.
const maskName = (masks, i) =>
  masks.length > 1 ? `Mask ${i + 1}, token ${masks[i] + 1}` : "The masked token";

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
