// Translate: a translation as it is written, with the attention of each of its tokens.

import { get, heads, lines } from "../api.js";
import { choose, h, segments, slide } from "../dom.js";
import { HeadPicker } from "../heads.js";
import { HeatMap } from "../map.js";
import { TokenLines } from "../tokens.js";

const EXAMPLES = { en: ["Two dogs run across the green field.", "I know that you like it.", "A man in a red shirt is playing the guitar.", "She gave him the book that he wanted."], fr: ["Je la mange.", "Je ne sais pas où il habite.", "Elle lui a donné un livre.", "Le chat noir dort sur la chaise."] };
const NAMES = { cross: "to the source", reading: "within the source", writing: "within the answer" };

export class Translate {
  constructor(frame, state) {
    this.frame = frame;
    const whole = (x) => (x === undefined || x === "" ? null : Number(x));
    this.state = { model: state.model ?? "", text: state.text ?? "", beams: Number(state.beams ?? 4), group: state.group ?? "cross", layer: whole(state.layer), head: whole(state.head), by: state.by ?? "words", answer: Number(state.answer ?? 0), beside: state.beside ? 1 : null };
    this.asked = Boolean(state.text);
    this.models = h("div");
    this.input = h("textarea", { id: "sentence", rows: 2, maxlength: 4000, placeholder: "A sentence…", "aria-label": "The sentence to translate", value: this.state.text, spellcheck: "false",
      onkeydown: (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); this.run(); } } });
    this.go = h("button", { type: "submit", class: "go" }, "Translate");
    this.stop = h("button", { type: "button", hidden: true, onclick: () => this.cancel() }, "Stop");
    this.chips = h("div", { class: "chips" });
    this.form = h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); this.run(); } }, this.input,
      h("div", { class: "row" }, slide("beams", { min: 1, max: 8, step: 1, value: this.state.beams, change: (x) => { this.state.beams = x; this.remember(); } }), this.go, this.stop), this.chips);
    this.answers = h("ol", { class: "answers", "aria-live": "polite", "aria-label": "Translations, the best first" });
    this.lines = new TokenLines({ label: ["read", "written"], point: (at) => this.map.emphasise(at && at[0] === "below" ? at[1] : null) });
    this.map = new HeatMap({ title: "Attention of each query (row) to each key (column)", tall: 460, read: (at) => this.lines.focus(at && this.map.source.rows === this.lines.below ? ["below", at[0]] : null, false) });
    this.picker = new HeadPicker({ pick: (layer, head) => { Object.assign(this.state, { layer, head }); this.look(); } });
    this.groups = h("div");
    this.all = h("div", { class: "panels", hidden: true }); // one map per translation
    this.beams = [];
    this.inside = h("section", { class: "inside", hidden: true, "aria-label": "Attention inside the model" }, this.lines.root,
      h("div", { class: "two" }, this.map.root, this.all, h("aside", {}, this.groups, this.picker.root)));
    this.root = h("div", { class: "view translate" }, h("h1", {}, "Translate"), h("p", { class: "lead" }, "A model writes one word after another, and before each it attends to what it has read."), this.models, this.form, this.answers, this.inside);
  }

  async enter() {
    const all = await this.frame.known("translate", this.state.model);
    if (!all.length) { this.models.append(h("p", { class: "empty" }, "There is no translator here.")); return; }
    this.known = Object.fromEntries(all.map((one) => [one.id, one]));
    if (this.state.model && !this.known[this.state.model]) this.asked = false; // an error is shown: do not run another model instead
    if (!this.known[this.state.model]) this.state.model = all[0].id;
    const kind = (one) => ({ Transformer: "Transformer", RNNSeq2Seq: "RNN" })[one.family] ?? one.family;
    this.models.replaceChildren(all.length <= 6
      ? segments("model", all.map((one) => [one.id, `${one.id} · ${kind(one)}`, one.about]), this.state.model, (id) => this.pick(id))
      : choose("model", all.map((one) => [one.id, `${one.id} · ${kind(one)}`]), this.state.model, (id) => this.pick(id)));
    this.suggest();
    if (this.asked) this.run(); else this.input.focus({ preventScroll: true });
  }

  leave() { this.cancel(); }

  pick(id) {
    const before = this.language();
    Object.assign(this.state, { model: id, layer: null, head: null, group: "cross", answer: 0 });
    this.suggest();
    if (this.language() !== before) this.input.value = this.state.text = "";
    if (this.input.value.trim()) this.run(); else this.remember();
  }

  language() { return /^fr/.test(this.state.model) ? "fr" : "en"; }

  suggest() {
    this.chips.replaceChildren(...EXAMPLES[this.language()].map((text) => h("button", { type: "button", class: "chip", onclick: () => { this.input.value = text; this.state.answer = 0; this.run(); } }, text)));
  }

  remember() { this.frame.remember("translate", { ...this.state, layer: this.state.layer, head: this.state.head }); }

  cancel() { this.work?.abort(); this.work = null; this.looking?.abort(); this.busy(false); }

  busy(on) {
    this.stop.hidden = !on;
    this.root.classList.toggle("working", on);
    this.frame.status(on ? "Translating…" : "");
  }

  async run() {
    this.cancel();
    this.state.text = this.input.value;
    this.remember();
    this.frame.fine();
    if (!this.state.text.trim()) { this.answers.replaceChildren(); this.inside.hidden = true; return; }
    const work = (this.work = new AbortController()), began = performance.now();
    this.busy(true);
    this.answers.replaceChildren(h("li", { class: "waiting" }, "…"));
    this.first = null;
    try {
      for await (const event of lines("translate", { model: this.state.model, text: this.state.text, beams: this.state.beams }, work.signal)) {
        if (event.waiting) this.frame.status(`${event.waiting} before you…`);
        if (event.beams) { this.first ??= performance.now() - began; this.list(event.beams, true); }
        if (event.translations) {
          Object.assign(this, { found: event.translations, looks: event.looks });
          this.list(event.translations, false);
          this.frame.status(`${event.translations.length} answer${event.translations.length > 1 ? "s" : ""} in ${Math.round(performance.now() - began)} ms, the first word after ${Math.round(this.first ?? 0)} ms.`);
        }
      }
      if (this.work !== work) return;
      this.busyDone();
      await this.open();
    } catch (problem) {
      if (problem.name !== "AbortError") this.answers.replaceChildren();
      if (this.work === work) this.frame.status("");
      this.frame.problem(problem);
    } finally {
      if (this.work === work) { this.stop.hidden = true; this.root.classList.remove("working"); }
    }
  }

  busyDone() { this.stop.hidden = true; this.root.classList.remove("working"); }

  list(found, writing) {
    const best = found[0]?.score ?? 0;
    this.answers.replaceChildren(...found.slice(0, this.state.beams).map((one, i) => {
      const text = h("span", { class: "said" }, one.text || "…");
      const score = h("span", { class: "score", title: "log-probability over length" }, one.score.toFixed(2));
      const bar = h("span", { class: "weight" });
      bar.style.setProperty("width", `${Math.max(2, 100 * Math.exp(one.score - best))}%`);
      if (writing) return h("li", { class: i ? "" : "first" }, text, score, bar);
      return h("li", { class: i ? "" : "first" }, h("button", { type: "button", "aria-pressed": i === this.state.answer, onclick: () => { this.state.answer = i; this.list(this.found, false); this.open(); } }, text, score), bar);
    }));
    if (!writing && found[this.state.answer]?.cut) this.answers.append(h("li", { class: "cut" }, "The sentence was longer than this model reads, or its answer than it may write: the rest was left out."));
  }

  async open() {
    const look = this.looks?.[this.state.answer] ?? this.looks?.[0];
    this.look_ = look;
    if (!look || !look.groups.length) {
      this.inside.hidden = true;
      if (this.found?.[0]?.text) this.answers.append(h("li", { class: "cut" }, "This model has no attention: it squeezes the sentence through one vector."));
      this.remember();
      return;
    }
    if (!look.groups.some((one) => one.name === this.state.group)) this.state.group = look.groups[0].name;
    this.inside.hidden = false;
    this.groups.replaceChildren(
      look.groups.length > 1 ? choose("attention", look.groups.map((one) => [one.name, NAMES[one.name]]), this.state.group, (name) => { Object.assign(this.state, { group: name, layer: null, head: null }); this.open(); }) : "",
      segments("by", [["words", "words"], ["pieces", "pieces"]], this.state.by, (by) => { this.state.by = by; this.look(); }),
      this.looks.length > 1 ? segments("answers", [["one", "one"], ["all", "side by side"]], this.state.beside ? "all" : "one", (many) => { this.state.beside = many === "all" ? 1 : null; this.look(); }) : "");
    const group = look.groups.find((one) => one.name === this.state.group);
    this.picker.forget();
    this.picker.show(group.layers, group.heads, [this.state.layer, this.state.head]);
    [this.state.layer, this.state.head] = this.picker.at;
    this.looking?.abort();
    this.looking = new AbortController();
    await this.look();
    for await (const line of heads(look.id, group.name, this.looking.signal)) this.picker.tell(line);
  }

  async look() {
    this.remember();
    const { group, layer, head, by, beside } = this.state;
    const seen = async (look) => {
      const own = look.groups.find((one) => one.name === group);
      const found = await get("looks/map", { look: look.id, group, layer, head, by: own.words ? by : "pieces", cells: 512 }, this.looking.signal);
      const at = this.looks.indexOf(look);
      return { found, rows: found.row_names ?? own.rows, keys: found.key_names ?? own.columns, title: `${at + 1}. ${this.found[at].text}` };
    };
    try {
      const [{ found, rows, keys }, ...every] = await Promise.all([this.look_, ...(beside ? this.looks.filter((one) => one.groups.length) : [])].map(seen));
      if (this.state.group !== group || this.state.layer !== layer || this.state.head !== head || this.state.by !== by || this.state.beside !== beside) return;
      this.numbers = found;
      this.compare(every);
      this.lines.show({ above: keys, below: rows, weights: found.weights });
      this.map.fixed = 1;
      this.map.show({ rows: this.lines.below, keys, part: () => ({ weights: found.weights, most: 1 }) }, true);
    } catch (problem) {
      if (problem.status === 404) return this.run();
      this.frame.problem(problem);
    }
  }

  // Show the maps of all translations side by side instead of the chosen one's.
  compare(every) {
    this.every = every.map(({ found }) => found);
    this.all.hidden = !(this.map.root.hidden = every.length > 0);
    while (this.beams.length < every.length) this.beams.push(new HeatMap({ tall: 300, fixed: 1 }));
    this.all.replaceChildren(...every.map((_, i) => this.beams[i].root));
    every.forEach(({ found, rows, keys, title }, i) => {
      this.beams[i].call(title);
      this.beams[i].show({ rows, keys, part: () => ({ weights: found.weights, most: 1 }) });
    });
  }

  pictures() { return this.inside.hidden ? [] : [this.lines.svg(), ...(this.every?.length ? this.beams.slice(0, this.every.length) : [this.map]).map((one) => one.svg())]; }

  data() { return { view: "translate", ...this.state, translations: this.found ?? [], attention: this.numbers ?? null, attentions: this.every ?? [] }; }
}
