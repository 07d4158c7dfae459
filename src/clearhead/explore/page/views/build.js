// Build: attention by hand with editable numbers, position encodings, and the memory with forgetting.

import { get, post } from "../api.js";
import { Curves } from "../curves.js";
import { choose, h, later, number, segments, slide } from "../dom.js";
import { HeatMap, whole } from "../map.js";
import { Matrix } from "../matrix.js";
import { Picture } from "../picture.js";
import { TokenLines } from "../tokens.js";

const START = {
  words: ["input 1", "input 2", "input 3"],
  x: [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]],
  wq: [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]],
  wk: [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]],
  wv: [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]],
};
const copy = (x) => JSON.parse(JSON.stringify(x));

export class Build {
  constructor(frame, state) {
    this.frame = frame;
    const given = (() => { try { return JSON.parse(state.m ?? "{}") ?? {}; } catch { return {}; } })();
    this.state = { ...copy(START), score: "dot", sharpness: 1, mask: "none", heads: 1, positions: "none", order: [0, 1, 2], panel: "attention", kind: "sinusoid", width: 64, length: 64, base: 10000, gamma: 0.9, sharp: 6, ...given };
    if (state.panel) this.state.panel = state.panel;
    if (!["attention", "positions", "memory"].includes(this.state.panel)) this.state.panel = "attention";
    this.made = {};
    const change = later(() => this.compute(), 30), light = (row) => this.light(row);
    const make = (name, about, key) => (this.made[key] = new Matrix({ name, about, change: key in START ? (values) => { this.keep(key, values); change(); } : null, point: ["x", "q", "scores", "weights", "out"].includes(key) ? light : null, most: key === "weights" ? 1 : null }));
    make("X", "a word a row", "x");
    make("Wq", "what a word asks for", "wq");
    make("Wk", "what it is found by", "wk");
    make("Wv", "what it has to say", "wv");
    this.projected = h("div", { class: "flowrow" });
    this.headsBox = h("div", {});
    make("Y", "the new words: A V", "out");
    this.lines = new TokenLines({ label: ["key", "query"], point: (at) => this.light(at && at[0] === "below" ? at[1] : null) });
    this.verdict = h("p", { class: "verdict", "aria-live": "polite" });
    this.controls = h("div", { class: "row" });
    this.orders = h("div", { class: "row" });
    this.attention = h("section", { class: "panel" },
      h("p", { class: "lead" }, "Three words, each a row of four numbers. Change any number, and the whole computation follows: softmax(Q Kᵀ) V."),
      this.controls, h("div", { class: "flowrow" }, this.made.x.root, this.made.wq.root, this.made.wk.root, this.made.wv.root),
      this.projected, this.headsBox, h("div", { class: "flowrow" }, this.made.out.root, h("div", { class: "grow" }, this.lines.root)), h("h2", {}, "Does the order matter?"), this.orders, this.verdict);
    this.vectors = new HeatMap({ title: "A vector a position", signed: true, tall: 300 });
    this.alike = new HeatMap({ title: "How alike two positions are", signed: true, tall: 380 });
    this.patch = new Picture({ title: "How like the chosen patch every patch of a picture is", size: 320, pick: (y, x) => this.choosePatch(y, x) });
    this.placing = h("div", { class: "row" });
    this.positions = h("section", { class: "panel" }, h("p", { class: "lead" }, "Attention sees a bag of words. A position is told by adding waves to the words (sinusoid), by turning queries and keys (rotary), or by a bias that grows with distance (alibi). Patches of a picture have two: a row and a column."), this.placing, h("div", { class: "two" }, this.vectors.root, this.alike.root, this.patch.root));
    this.left = new HeatMap({ title: "What a memory has left of each guest", tall: 380 });
    this.share = new Curves({ title: "The first guest's share of the answer", label: "guests" });
    this.fading = h("div", { class: "row" });
    this.memory = h("section", { class: "panel" }, h("p", { class: "lead" }, "Guests come to a party, one after another, and the memory is their sum, faded by γ at every step. It fades all guests alike: an old guest is gone, however important. Attention would find that guest again."), this.fading, h("div", { class: "two" }, this.left.root, this.share.root));
    this.panels = { attention: this.attention, positions: this.positions, memory: this.memory };
    this.tabs = h("div");
    this.root = h("div", { class: "view build" }, h("h1", {}, "Build"), this.tabs, ...Object.values(this.panels));
  }

  enter() {
    this.tabs.replaceChildren(segments("panel", [["attention", "Attention by hand"], ["positions", "Positions"], ["memory", "The memory that forgets"]], this.state.panel, (panel) => { this.state.panel = panel; this.open(); }));
    this.open();
  }

  open() {
    for (const [name, panel] of Object.entries(this.panels)) panel.hidden = name !== this.state.panel;
    if (this.state.panel === "attention") { this.control(); this.compute(); }
    if (this.state.panel === "positions") { this.placeControls(); this.place(); }
    if (this.state.panel === "memory") { this.fadeControls(); this.fade(); }
  }

  remember() {
    const { panel, ...rest } = this.state, m = {};
    const usual = { ...START, score: "dot", sharpness: 1, mask: "none", heads: 1, positions: "none", order: [0, 1, 2], kind: "sinusoid", width: 64, length: 64, base: 10000, gamma: 0.9, sharp: 6 };
    for (const [key, value] of Object.entries(rest)) if (JSON.stringify(value) !== JSON.stringify(usual[key])) m[key] = value;
    this.frame.remember("build", { panel: panel === "attention" ? null : panel, m: Object.keys(m).length ? m : null });
  }

  control() {
    const set = (key) => (value) => { this.state[key] = value; this.compute(); };
    this.controls.replaceChildren(
      choose("score", [["dot", "dot product"], ["scaled", "scaled dot product"], ["cosine", "cosine"], ["additive", "additive (tanh)"]], this.state.score, set("score")),
      choose("mask", [["none", "none"], ["causal", "causal: only the past"], ["window", "window of 2"]], this.state.mask, set("mask")),
      choose("heads", [1, 2, 3], this.state.heads, (n) => this.share_(Number(n))),
      choose("positions", [["none", "none"], ["sinusoid", "sinusoid"], ["rotary", "rotary"], ["alibi", "alibi"]], this.state.positions, (kind) => { this.state.positions = kind; this.even(); this.compute(); }),
      slide("sharpness", { min: -2, max: 3, step: 0.05, value: Math.log10(this.state.sharpness || 0.01), show: (x) => (x >= 2.99 ? "1000: a dictionary lookup" : (10 ** x).toPrecision(2)), change: (x) => { this.state.sharpness = Number((10 ** x).toPrecision(3)); this.compute(); } }),
      h("button", { type: "button", onclick: () => { Object.assign(this.state, copy(START), { score: "dot", sharpness: 1, mask: "none", heads: 1, positions: "none", order: [0, 1, 2] }); this.control(); this.compute(); } }, "The lecture's example"));
    const n = this.state.x.length;
    this.orders.replaceChildren(
      h("button", { type: "button", id: "permute", onclick: () => { this.state.order = [...this.state.order.slice(1), this.state.order[0]]; this.compute(); } }, "Move the first word to the end"),
      h("button", { type: "button", onclick: () => { const o = [...this.state.order]; [o[0], o[1]] = [o[1], o[0]]; this.state.order = o; this.compute(); } }, "Swap the first two"),
      h("button", { type: "button", onclick: () => { this.state.order = Array.from({ length: n }, (_, i) => i); this.compute(); } }, "As they were"),
      h("button", { type: "button", disabled: n >= 6, onclick: () => { this.state.x.push(this.state.x[0].map((_, j) => (j === n % 4 ? 1 : 0))); this.state.words.push(`input ${n + 1}`); this.state.order = Array.from({ length: n + 1 }, (_, i) => i); this.control(); this.compute(); } }, "One more word"),
      h("button", { type: "button", disabled: n <= 1, onclick: () => { this.state.x.pop(); this.state.words.pop(); this.state.order = Array.from({ length: n - 1 }, (_, i) => i); this.control(); this.compute(); } }, "One word less"));
  }

  // The rows of X are shown in their present order: put edited values back to the words they belong to.
  keep(key, values) { if (key === "x") this.state.order.forEach((word, i) => { this.state.x[word] = [...values[i]]; }); else this.state[key] = copy(values); }

  // Change the number of heads: a new head gets the columns of the first one, with rows rotated by its number.
  share_(n) {
    for (const key of ["wq", "wk", "wv"]) {
      const each = this.state[key][0].length / this.state.heads;
      this.state[key] = this.state[key].map((row, i) => Array.from({ length: n }, (_, head) => (head < this.state.heads ? row.slice(head * each, (head + 1) * each) : this.state[key][(i + head) % this.state[key].length].slice(0, each))).flat());
    }
    this.state.heads = n;
    this.compute();
  }

  // Rotary positions rotate pairs of columns: a head of odd width gets one more column, of zeros.
  even() {
    const each = this.state.wq[0].length / this.state.heads;
    if (this.state.positions !== "rotary" || each % 2 === 0) return;
    for (const key of ["wq", "wk"]) this.state[key] = this.state[key].map((row) => Array.from({ length: this.state.heads }, (_, head) => [...row.slice(head * each, (head + 1) * each), 0]).flat());
  }

  async compute() {
    this.remember();
    const { x, wq, wk, wv, score, sharpness, mask, heads, positions, order } = this.state;
    const asked = (this.asking = {});
    try {
      const found = await post("build", { x, wq, wk, wv, score, sharpness, heads, positions, order, causal: mask === "causal", window: mask === "window" ? 2 : null });
      if (this.asking !== asked) return;
      this.frame.fine();
      this.result = found;
      this.draw(found);
    } catch (problem) { this.frame.problem(problem); }
  }

  draw(found) {
    const names = this.state.order.map((i) => String(this.state.words[i] ?? `input ${i + 1}`));
    this.made.x.show(this.state.order.map((i) => [...this.state.x[i]]), { rows: names });
    for (const key of ["wq", "wk", "wv"]) this.made[key].show(copy(this.state[key]));
    const side = (parts) => parts[0].map((_, i) => parts.flatMap((part) => part[i]));
    const fixed = (key, name, about, values, options = {}) => {
      this.made[key] ??= new Matrix({ name, about, point: options.point === false ? null : (row) => this.light(row), most: options.most ?? null });
      this.made[key].show(values, { rows: options.rows ?? names, columns: options.columns ?? null });
      return this.made[key].root;
    };
    const shifted = this.state.positions === "sinusoid" ? [fixed("placed", "X + P", "with its position added", found.x)] : [];
    this.projected.replaceChildren(...shifted, fixed("q", "Q", "= X Wq", side(found.q)), fixed("k", "K", "= X Wk", side(found.k)), fixed("v", "V", "= X Wv", side(found.v)));
    const many = found.weights.length > 1;
    this.headsBox.replaceChildren(...found.weights.map((weights, i) => h("div", { class: "flowrow" },
      fixed(`e${i}`, many ? `E, head ${i + 1}` : "E", `scores: ${{ dot: "Q Kᵀ", scaled: "Q Kᵀ / √e", cosine: "cos(Q, K)", additive: "Σ tanh(q + k)" }[this.state.score]}${this.state.sharpness !== 1 ? ` × ${number(this.state.sharpness)}` : ""}`, found.scores[i], { columns: names }),
      fixed(`a${i}`, many ? `A, head ${i + 1}` : "A", "softmax of each row", weights, { columns: names, most: 1 }))));
    this.made.out.show(found.out, { rows: names });
    const mean = found.weights[0].map((row, i) => row.map((_, j) => found.weights.reduce((sum, w) => sum + w[i][j], 0) / found.weights.length));
    this.lines.show({ above: names, below: names, weights: mean });
    const moved = this.state.order.some((word, i) => word !== i), same = found.moved < 1e-9;
    this.verdict.textContent = !moved ? "Move the words, and see whether their answers move with them."
      : same ? "The answers moved with their words, and are the same numbers: self-attention sees a set (it is permutation equivariant)."
        : `The answers changed by up to ${number(found.moved)}: ${this.state.positions !== "none" ? "positions" : "the mask"} made the order matter.`;
    this.verdict.classList.toggle("same", moved && same);
  }

  light(row) { for (const [key, matrix] of Object.entries(this.made)) if (!/^w/.test(key) && !/^[kv]$/.test(key)) matrix.light(row); }

  placeControls() {
    const again = later(() => this.place(), 40), set = (key) => (value) => { this.state[key] = value; again(); };
    this.placing.replaceChildren(
      choose("positions", [["sinusoid", "sinusoid"], ["rotary", "rotary"], ["alibi", "alibi"], ["sincos2d", "rows and columns"]], this.state.kind, (kind) => { this.state.kind = kind; this.placeControls(); this.place(); }),
      ...(this.state.kind === "alibi" ? [slide("head", { min: 0, max: 7, step: 1, value: this.state.width % 8, change: (x) => set("width")(64 + x) })] : [slide("width", { min: 8, max: 256, step: 4, value: this.state.width - this.state.width % 4, change: set("width") })]),
      slide(this.state.kind === "sincos2d" ? "patches a side" : "positions", this.state.kind === "sincos2d" ? { min: 4, max: 14, step: 1, value: Math.min(this.state.length, 14), change: set("length") } : { min: 8, max: 256, step: 1, value: this.state.length, change: set("length") }),
      ...(this.state.kind === "alibi" ? [] : [slide("base", { min: 1, max: 5, step: 0.1, value: Math.log10(this.state.base), show: (x) => Math.round(10 ** x).toLocaleString(), change: (x) => set("base")(Math.round(10 ** x)) })]));
  }

  async place() {
    this.remember();
    const { kind, base } = this.state, flat = kind === "sincos2d", width = kind === "alibi" ? this.state.width : Math.max(8, this.state.width - (this.state.width % 4));
    const length = flat ? Math.min(this.state.length, 14) : this.state.length;
    try {
      const found = await get("positions", { kind, width, length, base });
      this.placed = found;
      const names = found.vectors.map((_, i) => (flat ? `${Math.floor(i / length)},${i % length}` : String(i)));
      this.vectors.show(whole(names, found.vectors[0].map((_, i) => String(i)), found.vectors));
      this.alike.root.hidden = flat;
      this.patch.root.hidden = !flat;
      if (flat) this.choosePatch(...(this.patch.at && Math.max(...this.patch.at) < length ? this.patch.at : [Math.floor(length / 2), Math.floor(length / 3)]));
      else this.alike.show(whole(names, names, found.similarity));
    } catch (problem) { this.frame.problem(problem); }
  }

  choosePatch(y, x) {
    const side = Math.round(Math.sqrt(this.placed.similarity.length)), row = this.placed.similarity[y * side + x];
    this.patch.show({ overlay: Array.from({ length: side }, (_, i) => row.slice(i * side, (i + 1) * side)), at: [y, x] });
  }

  fadeControls() {
    const again = later(() => this.fade(), 40);
    this.fading.replaceChildren(slide("γ", { min: 0.3, max: 1, step: 0.01, value: this.state.gamma, show: (x) => `${x.toFixed(2)}${x === 1 ? ": forgets nothing" : ""}`, change: (x) => { this.state.gamma = x; again(); } }),
      slide("attention's sharpness", { min: 0, max: 12, step: 0.5, value: this.state.sharp, change: (x) => { this.state.sharp = x; again(); } }));
  }

  async fade() {
    this.remember();
    try {
      const found = await get("memory", { gamma: this.state.gamma, length: 24, sharpness: this.state.sharp });
      this.faded = found;
      const names = found.left.map((_, i) => `guest ${i + 1}`);
      this.left.fixed = 1;
      this.left.show(whole(names.map((_, i) => `after ${i + 1}`), names, found.left, 1), true);
      this.share.show([{ name: "memory", points: found.share.map((row, i) => [i + 1, row[0]]) }, { name: "attention that asks for that guest", points: found.attention.map((x, i) => [i + 1, x]) }]);
    } catch (problem) { this.frame.problem(problem); }
  }

  pictures() {
    if (this.state.panel === "positions") return [this.vectors.svg(), this.state.kind === "sincos2d" ? this.patch.svg() : this.alike.svg()];
    if (this.state.panel === "memory") return [this.left.svg(), this.share.svg()];
    return ["x", "wq", "wk", "wv", "q", "k", "v", ...Object.keys(this.made).filter((key) => /^[ea]\d$/.test(key) && Number(key[1]) < (this.result?.weights.length ?? 0)), "out"].map((key) => this.made[key]?.svg()).concat(this.lines.svg());
  }

  data() { return { view: "build", ...this.state, result: this.state.panel === "positions" ? this.placed : this.state.panel === "memory" ? this.faded : this.result }; }
}
