// Write: a language model continues a text; shows attention, candidates and logit lens of any token; heads can be silenced.

import { get, heads, lines } from "../api.js";
import { choose, h, percent, slide, spelt } from "../dom.js";
import { HeadPicker } from "../heads.js";
import { HeatMap } from "../map.js";
import { TokenLines, TokenText } from "../tokens.js";

const SPAN = 24; // largest number of tokens shown with lines
const EXAMPLES = ["The man", "Two dogs", "When I was young,", "She told me that", "Could you please"];

export class Write {
  constructor(frame, state) {
    this.frame = frame;
    const whole = (x) => (x === undefined || x === "" ? null : Number(x));
    let off = {};
    try { off = JSON.parse(state.off ?? "{}") ?? {}; } catch { /* none */ }
    this.state = { model: state.model ?? "", text: state.text ?? "", max_new: Number(state.max_new ?? 40), temperature: Number(state.temperature ?? 0.7), seed: Number(state.seed ?? 1), layer: whole(state.layer), head: whole(state.head), at: whole(state.at), off };
    this.asked = Boolean(state.text);
    this.models = h("div");
    this.input = h("textarea", { id: "prompt", rows: 3, maxlength: 120000, "aria-label": "The text to go on with", placeholder: "A text to go on with…", value: this.state.text, spellcheck: "false",
      onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.run(); } } });
    this.stop = h("button", { type: "button", hidden: true, onclick: () => this.cancel() }, "Stop");
    const seed = h("input", { type: "number", min: 0, max: 2147483647, value: this.state.seed, onchange: () => { this.state.seed = Math.max(0, Math.floor(Number(seed.value) || 0)); this.remember(); } });
    this.form = h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); this.run(); } }, this.input, h("div", { class: "row" },
      slide("new tokens", { min: 0, max: 200, step: 1, value: this.state.max_new, change: (x) => { this.state.max_new = x; this.remember(); } }),
      slide("temperature", { min: 0, max: 2, step: 0.1, value: this.state.temperature, show: (x) => (x ? x.toFixed(1) : "0, the likeliest"), change: (x) => { this.state.temperature = x; this.remember(); } }),
      h("label", { class: "field short" }, h("span", {}, "seed"), seed),
      h("button", { type: "submit", class: "go" }, "Write"), h("button", { type: "button", id: "read", onclick: () => this.run(0) }, "Only read"), this.stop),
      h("div", { class: "chips" }, EXAMPLES.map((text) => h("button", { type: "button", class: "chip", onclick: () => { this.input.value = text; this.run(); } }, text))));
    this.text = new TokenText({ pick: (at) => this.pick(at), point: (at) => this.hover(at) });
    this.candidates = h("div", { class: "candidates", "aria-live": "polite" });
    this.lens = h("div", { class: "lens" });
    this.map = new HeatMap({ title: "Attention of each token to those before it", tall: 520, pick: (row) => this.pick(row), read: (at) => { if (at) this.text.choose(this.state.at); } });
    this.lines = new TokenLines({ label: ["key", "query"] });
    this.picker = new HeadPicker({ off: this.state.off, pick: (layer, head) => { Object.assign(this.state, { layer, head }); this.look(); } });
    this.picker.switched = () => { this.remember(); this.told(); };
    this.switches = h("div", { class: "row" });
    this.inside = h("section", { class: "inside", hidden: true, "aria-label": "Attention inside the model" },
      h("div", { class: "two" }, h("div", {}, h("h2", {}, "The likeliest here"), this.candidates), h("div", {}, h("h2", {}, "What each layer would say next"), this.lens)),
      h("div", { class: "two" }, h("div", {}, this.map.root), h("aside", {}, this.picker.root, this.switches)), h("h2", {}, "Attention of this token"), this.lines.root);
    this.under = h("p", { class: "note" }, " ");
    this.flowing = h("div", { class: "written", hidden: true }, this.text.root, this.under);
    this.root = h("div", { class: "view write" }, h("h1", {}, "Write"), h("p", { class: "lead" }, "A language model predicts the next token, picks one, appends it, and continues. Choose a token to see what it attends to, which other tokens were likely in its place, and what each layer would have predicted."), this.models, this.form, this.flowing, this.inside);
  }

  async enter() {
    const all = await this.frame.known("write", this.state.model);
    if (!all.length) {
      this.form.hidden = true;
      this.models.append(h("p", { class: "empty" }, "There is no language model here yet. Start the explorer with the folder of one, GPT-2's for example:"), h("pre", {}, "clearhead explore path/to/gpt2"));
      return;
    }
    this.known = Object.fromEntries(all.map((one) => [one.id, one]));
    if (this.state.model && !this.known[this.state.model]) this.asked = false; // an error is shown: do not run another model instead
    if (!this.known[this.state.model]) this.state.model = all[0].id;
    this.models.replaceChildren(choose("model", all.map((one) => [one.id, `${one.id} · ${(one.parameters / 1e6).toFixed(1)}M`]), this.state.model, (id) => { Object.assign(this.state, { model: id, layer: null, head: null, at: null }); for (const key of Object.keys(this.state.off)) delete this.state.off[key]; this.remember(); }));
    this.told();
    if (this.asked) this.run(); else this.input.focus({ preventScroll: true });
  }

  leave() { this.cancel(); }
  remember() { this.frame.remember("write", { ...this.state, off: Object.keys(this.state.off).length ? this.state.off : null }); }
  cancel() { this.work?.abort(); this.work = null; this.looking?.abort(); this.stop.hidden = true; this.root.classList.remove("working"); this.frame.status(""); }

  told() {
    const some = Object.values(this.state.off).flat().length;
    const [layer, head] = this.picker.at;
    this.switches.replaceChildren(
      h("button", { type: "button", id: "switch", disabled: layer === null || head === null, onclick: () => this.picker.toggle(layer, head) }, layer === null || head === null ? "Choose a head to switch it off" : this.state.off[layer]?.includes(head) ? `Switch head ${layer}.${head} on` : `Switch head ${layer}.${head} off`),
      some ? h("button", { type: "button", onclick: () => { for (const key of Object.keys(this.state.off)) delete this.state.off[key]; this.picker.draw(); this.told(); this.remember(); } }, "All on") : "",
      some ? h("button", { type: "button", class: "go", onclick: () => this.run() }, `Write without ${some} head${some > 1 ? "s" : ""}`) : "");
  }

  async run(most = this.state.max_new) {
    this.cancel();
    if (this.state.text !== this.input.value) Object.assign(this.state, { text: this.input.value, at: null });
    this.remember();
    this.frame.fine();
    const work = (this.work = new AbortController()), began = performance.now();
    this.stop.hidden = false;
    this.root.classList.add("working");
    this.frame.status(most ? "Writing…" : "Reading…");
    this.shares = {};
    this.steps = [];
    this.flowing.hidden = false;
    this.inside.hidden = true;
    this.text.show([this.state.text], { from: 1, first: 0 });
    try {
      const asked = { model: this.state.model, text: this.state.text, max_new: most, temperature: this.state.temperature, seed: this.state.seed, off: this.state.off };
      for await (const event of lines("write", asked, work.signal)) {
        if (event.waiting) this.frame.status(`${event.waiting} before you…`);
        if (event.token) { this.steps.push(event.token); this.text.append(event.token.piece); }
        if (event.progress) this.frame.status(`Looking inside: block ${event.progress[0]} of ${event.progress[1]}…`);
        if (event.look) this.found = event.look;
      }
      if (this.work !== work) return;
      const count = (this.found.groups[0]?.rows.length ?? 0).toLocaleString();
      this.done = `${this.steps.length ? `${this.steps.length} token${this.steps.length === 1 ? "" : "s"} written` : `${count} token${count === "1" ? "" : "s"} read`} in ${((performance.now() - began) / 1000).toFixed(1)} s.`;
      this.frame.status(this.done);
      await this.open();
    } catch (problem) {
      if (this.work === work) this.frame.status("");
      this.frame.problem(problem);
    } finally {
      if (this.work === work) { this.stop.hidden = true; this.root.classList.remove("working"); }
    }
  }

  async open() {
    const group = this.found.groups[0];
    this.inside.hidden = false;
    this.tokens = group?.rows ?? [];
    if (this.state.at === null || this.state.at >= this.tokens.length) this.state.at = this.tokens.length - 1;
    this.text.show(this.tokens, { from: this.tokens.length - this.steps.length, first: Math.floor(this.state.at / this.text.page) * this.text.page });
    if (!group) return;
    this.picker.forget();
    this.picker.show(group.layers, group.heads, [this.state.layer, this.state.head]);
    [this.state.layer, this.state.head] = this.picker.at;
    if (this.tokens.length > 2000 && this.state.layer === null) { Object.assign(this.state, { layer: 0, head: 0 }); this.picker.show(group.layers, group.heads, [0, 0]); }
    this.looking = new AbortController();
    await this.look();
    try {
      for await (const line of heads(this.found.id, group.name, this.looking.signal)) { this.picker.tell(line); if (this.tokens.length > 2000) this.frame.status(line.layer + 1 < line.layers ? `Measuring heads: layer ${line.layer + 1} of ${line.layers}…` : this.done); }
    } catch (problem) { this.frame.problem(problem); }
  }

  look() {
    this.remember();
    this.told();
    const { layer, head } = this.state;
    const part = (row, rows, key, keys) => get("looks/map", { look: this.found.id, group: "self", layer, head, row, rows, key, keys, cells: 256 }, this.looking.signal);
    this.map.show({ rows: this.tokens, keys: this.tokens, part }, true);
    return this.pick(this.state.at, false);
  }

  async pick(at, moved = true) {
    this.state.at = at;
    this.text.choose(at, true);
    this.map.emphasise(at);
    if (moved) this.remember();
    const { layer, head } = this.state;
    try {
      const row = await get("looks/map", { look: this.found.id, group: "self", layer, head, row: at, rows: 1, cells: 512 }, this.looking.signal);
      if (this.state.at !== at) return;
      if (row.weights[0].length === this.tokens.length) this.text.shade(row.weights[0]);
      else {
        const from = this.text.first, near = await get("looks/map", { look: this.found.id, group: "self", layer, head, row: at, rows: 1, key: from, keys: Math.min(this.text.page, this.tokens.length - from), cells: 512 }, this.looking.signal);
        const shares = []; near.weights[0].forEach((x, i) => { shares[from + i] = x; });
        this.text.shade(Array.from(shares, (x) => x ?? 0));
      }
      this.drawLines(at);
      const [lens, said] = await Promise.all([get("looks/lens", { look: this.found.id, at }, this.looking.signal), at > 0 ? get("looks/candidates", { look: this.found.id, first: at, last: at + 1 }, this.looking.signal) : null]);
      if (this.state.at !== at) return;
      this.tellLens(lens);
      this.tellCandidates(at, said);
    } catch (problem) {
      if (problem.status === 404) return this.run();
      this.frame.problem(problem);
    }
  }

  async drawLines(at) {
    const { layer, head } = this.state, first = Math.max(0, Math.min(at - SPAN + 2, this.tokens.length - SPAN)), n = Math.min(SPAN, this.tokens.length - first);
    const near = await get("looks/map", { look: this.found.id, group: "self", layer, head, row: first, rows: n, key: first, keys: n, cells: 64 }, this.looking.signal);
    if (this.state.at !== at) return;
    const some = this.tokens.slice(first, first + n);
    this.numbers = near;
    this.lines.show({ above: some, below: some, weights: near.weights });
    this.lines.focus(["below", at - first], false);
  }

  // Describe the token under the pointer: its alternatives, and the attention weight that the chosen token gives it.
  hover(at) {
    const said = [], written = this.steps?.[at - (this.text.tokens.length - (this.steps?.length ?? 0))], share = this.text.shares?.[at];
    if (at !== null && written) said.push(`${spelt(written.piece)} ${percent(written.share)}; the likeliest were ${written.candidates.map(([piece, x]) => `${spelt(piece)} ${percent(x)}`).join(", ")}`);
    if (at !== null && share !== undefined && this.tokens) said.push(`${spelt(this.tokens[this.state.at])} attends to it with ${percent(share)}`);
    this.under.textContent = said.join("; ") || " ";
  }

  bars(list, own = null) {
    return h("ul", { class: "bars" }, list.map(([piece, share]) => {
      const bar = h("span", { class: "weight" });
      bar.style.setProperty("width", `${Math.max(1, 100 * share)}%`);
      return h("li", { class: piece === own ? "own" : "" }, h("code", {}, spelt(piece)), h("span", {}, percent(share)), bar);
    }));
  }

  tellCandidates(at, said) {
    const own = this.tokens[at];
    this.candidates.replaceChildren(...(said
      ? [h("p", {}, "In the place of ", h("code", {}, spelt(own)), ` (${percent(said.shares[0])}):`), this.bars(said.candidates[0], own)]
      : [h("p", {}, "Nothing stands before the first token: nothing was expected here.")]));
  }

  tellLens(lens) {
    this.lensData = lens;
    const last = lens.layers.length - 1;
    this.lens.replaceChildren(h("p", {}, "After ", h("code", {}, spelt(this.tokens[lens.at])), ":"), h("table", {}, h("tbody", {}, lens.layers.map((list, i) => h("tr", { class: i === last ? "own" : "" }, h("th", { scope: "row" }, i === last ? "answer" : `block ${i}`),
      list.slice(0, 4).map(([piece, share]) => { const cell = h("td", {}, h("code", {}, spelt(piece)), " ", h("small", {}, percent(share))); return cell; }))))));
  }

  pictures() { return this.inside.hidden ? [] : [this.map.svg(), this.lines.svg()]; }
  data() { return { view: "write", ...this.state, tokens: this.tokens ?? [], steps: this.steps ?? [], attention: this.numbers ?? null, lens: this.lensData ?? null }; }
}
