/**
 * Attention by hand: editable matrices, every result with its arithmetic, the softmax step by step,
 * and whether order matters.
 */

import { post } from "../api.js";
import { TokenLines } from "../attention/token_lines.js";
import { h, later, s } from "../dom.js";
import { heading } from "../figures/sheet.js";
import { total } from "../numbers.js";
import { Computation, shown } from "./arithmetic.js";
import { Controls, Orders } from "./controls.js";
import { attentionFormula, captions, inWords, symbols } from "./formula.js";
import { Matrix } from "./matrix.js";
import { copy, EXAMPLE, names } from "./options.js";
import { Steps } from "./steps.js";

const HINT = [
  "Where does a number come from?",
  "Point at any number, tap it, or move to it with Tab and the arrow keys.",
];
// as in the formula: a masked score is −∞
const scored = (x, masked) => (masked ? "−∞" : shown(x));

const weight = (x, masked) => {
  if (masked) return "0";
  if (x === 0) return "≈ 0";
  return shown(x);
};

// the columns of all heads in one matrix
const beside = (heads) => heads[0].map((_, i) => heads.flatMap((head) => head[i]));

export class Attention {
  // view: its options, remember() and activity
  constructor(view) {
    this.view = view;
    this.made = {}; // matrices by key: x wq wk wv placed q k v rq rk e0 a0 e1 a1 ... out
    this.held = null; // the cell with the focus, [key, row, column]
    this.under = null; // the cell under the pointer
    this.soon = later(() => this.compute(), 30);
    this.box = { title: h("b"), text: h("span") };
    const options = () => this.options;
    const computed = () => this.compute();
    this.controls = new Controls({
      options,
      computed,
      set: (key, value) => {
        this.options[key] = value;
        this.compute();
      },
      reset: () => {
        Object.assign(this.options, copy(EXAMPLE));
        this.controls.sync();
        this.compute();
      },
    });
    this.orders = new Orders({ options, computed });
    this.steps = new Steps({ mark: () => this.light() });
    this.lines = new TokenLines({
      label: ["key", "query"],
      point: (at) => this.pointRow(at?.[0] === "below" ? at[1] : null),
    });
    this.linesTitle = h("h2", {});
    this.verdict = h("p", { class: "verdict", "aria-live": "polite" });
    this.flow = this.makeFlow();
    this.below = h(
      "div",
      {},
      this.steps.root,
      h("h2", {}, "Does the order matter?"),
      this.orders.root,
      this.verdict,
    );
    const explanation = { class: "explanation", id: "explanation", "aria-live": "polite" };
    this.root = h(
      "section",
      { class: "panel" },
      this.controls.root,
      h("div", explanation, this.box.title, this.box.text),
      this.flow,
      this.below,
    );
  }

  // The groups of matrices, in the order in which they are computed.
  makeFlow() {
    const group = (title, ...parts) => {
      const body = h("div", { class: "matrices" }, parts);
      const root = h("section", { class: "group", "aria-label": title }, h("h2", {}, title), body);
      return { body, root };
    };
    const given = ["x", "wq", "wk", "wv"].map((key) => this.matrix(key).root);
    const inputs = group("Inputs and projections: change any number", given);
    this.groups = {
      projected: group("Queries, keys, values"),
      scores: group("Scores and weights"),
      out: group("Outputs", this.matrix("out").root),
    };
    const onpointerleave = () => {
      this.under = null;
      this.light();
    };
    return h(
      "div",
      { class: "flow-groups", onpointerleave },
      inputs.root,
      Object.values(this.groups).map(({ root }) => root),
      h("section", { class: "group grow" }, this.linesTitle, this.lines.root),
    );
  }

  get options() {
    return this.view.options;
  }

  lead() {
    const asked = this.found?.asked ?? this.options;
    const width = this.options.wq[0].length / this.options.heads;
    const where = symbols(asked, this.found?.width ?? width, this.found?.answer.slopes);
    return [
      "Each input becomes a query, a key and a value. The outputs are ",
      h("span", { class: "formula" }, attentionFormula(asked)),
      where.length ? ` (${where.join("; ")})` : "",
      asked.heads > 1 ? `, in each of ${asked.heads} heads.` : ".",
      " Change any number.",
    ];
  }

  matrix(key) {
    const editable = /^(x|w.)$/.test(key);
    const change = (values) => {
      this.keep(key, values);
      this.soon();
    };
    this.made[key] ??= new Matrix({
      most: /^a\d/.test(key) ? 1 : null,
      change: editable ? change : null,
      point: (at, focus) => this.pointCell(key, at, focus),
    });
    return this.made[key];
  }

  // The rows of X are shown in their present order: edited values go back to the inputs they belong
  // to.
  keep(key, values) {
    if (key !== "x") {
      this.options[key] = copy(values);
      return;
    }
    this.options.order.forEach((word, i) => {
      this.options.x[word] = [...values[i]];
    });
  }

  open() {
    this.controls.sync();
    this.compute(false);
  }

  close() {
    this.steps.pause();
  }

  // changed: by the user, and so to be written into the address
  async compute(changed = true) {
    if (changed) this.view.remember();
    const { x, wq, wk, wv, score, sharpness, mask, heads, positions, order } = this.options;
    const asked = copy({ ...this.options, x: order.map((i) => x[i]) });
    const named = names(this.options);
    const masking = { causal: mask === "causal", window: mask === "window" ? 2 : null };
    const request = { x, wq, wk, wv, score, sharpness, heads, positions, order, ...masking };
    this.asking?.abort();
    const own = (this.asking = new AbortController());
    try {
      const answer = await post("build", request, own.signal);
      if (this.asking !== own) return;
      this.found = new Computation(asked, answer, named);
      this.flow.hidden = this.below.hidden = false;
      this.draw();
      this.view.settled();
    } catch (trouble) {
      if (this.asking !== own || trouble.name === "AbortError") return;
      // what was computed before stays while the server does not answer
      this.flow.hidden = this.below.hidden = Boolean(!trouble.offline || !this.found);
      this.view.activity.fail(trouble);
    }
  }

  draw() {
    const { asked, answer, names: rows, width, heads } = this.found;
    const about = captions(asked, width, null);
    this.showMatrix("x", "X", copy(asked.x), { about: about.x });
    for (const key of ["wq", "wk", "wv"]) {
      const more = { about: about[key], rows: null, heads };
      this.showMatrix(key, `W${key[1]}`, copy(asked[key]), more);
    }
    place(this.groups.projected.body, this.projected(about));
    place(
      this.groups.scores.body,
      answer.weights.flatMap((_, head) => this.scores(head, about)),
    );
    this.showMatrix("out", "Y", answer.out, { about: about.out, heads });
    const mean = heads > 1 ? `, mean of ${heads} heads` : "";
    this.linesTitle.textContent = `Weights as lines${mean}`;
    const weight = (i, j) => total(answer.weights.map((own) => own[i][j])) / heads;
    const weights = rows.map((_, i) => rows.map((_, j) => weight(i, j)));
    this.lines.show({ above: rows, below: rows, weights });
    this.steps.show(this.found);
    this.judge();
    this.orders.show(rows.length);
    this.light();
  }

  showMatrix(key, name, values, more) {
    this.matrix(key).show(values, { name, rows: this.found.names, ...more });
    return this.matrix(key).root;
  }

  // Queries, keys and values, with the inputs at their positions before them and the rotated ones
  // after them, where the positions have those.
  projected(about) {
    const {
      asked: { positions },
      answer,
      heads,
    } = this.found;
    const placed = positions === "sinusoid";
    const show = (key, name, values, repeated = true) =>
      this.showMatrix(key, name, beside(values), { about: about[key], heads, repeated });
    const nodes = [
      show("q", "Q", answer.projected_q, placed),
      show("k", "K", answer.projected_k),
      show("v", "V", answer.v),
    ];
    if (placed) {
      nodes.unshift(this.showMatrix("placed", "X + P", answer.x, { about: about.placed }));
    }
    if (positions === "rotary") {
      nodes.push(show("rq", "Q′", answer.q, false), show("rk", "K′", answer.k));
    }
    return nodes;
  }

  // The scores and the weights of one head.
  scores(head, about) {
    const { asked, answer, names: columns, width } = this.found;
    const slope = answer.slopes?.[head] ?? null;
    const masked = { columns, masked: answer.masked };
    const scores = { about: captions(asked, width, slope).e, text: scored, ...masked };
    const weights = { about: about.a, text: weight, ...masked };
    const name = (letter) => this.found.name(letter, head);
    return [
      this.showMatrix(`e${head}`, name("E"), answer.scores[head], scores),
      this.showMatrix(`a${head}`, name("A"), answer.weights[head], weights),
    ];
  }

  // Say whether the order of the inputs changed their outputs.
  judge() {
    const { asked, answer } = this.found;
    const moved = asked.order.some((word, i) => word !== i);
    const same = answer.moved <= 1e-9 * Math.max(1, ...answer.out.flat().map(Math.abs));
    this.verdict.textContent = moved
      ? this.orderVerdict(same)
      : "Move the inputs and see whether their outputs move with them, unchanged.";
    this.verdict.classList.toggle("same", moved && same);
  }

  orderVerdict(same) {
    const { asked, answer } = this.found;
    if (same) {
      return "The outputs moved with their inputs and are the same numbers: self-attention treats its inputs as a set (it is permutation equivariant).";
    }
    const why = [asked.positions !== "none" && "positions", asked.mask !== "none" && "the mask"];
    const reason = why.filter(Boolean).join(" and ");
    return `The outputs changed by up to ${shown(answer.moved)}: ${reason} made the order matter.`;
  }

  pointCell(key, at, focus) {
    const cell = at && [key, ...at];
    if (focus) {
      this.held = cell;
      if (cell) this.under = null;
    } else this.under = cell;
    this.light();
  }

  pointRow(row) {
    this.under = row === null ? null : ["row", row];
    this.light();
  }

  // Explain the cell under the pointer, or the one with the focus, and mark what it is computed
  // from; otherwise mark the step that is shown.
  light() {
    if (!this.found) return;
    const known = (cell) => cell && (cell[0] === "row" || this.exists(cell));
    const at = [this.under, this.held].find(known) ?? null;
    const { cells, title, text } = this.explained(at);
    for (const [key, matrix] of Object.entries(this.made)) {
      const own = cells.filter(([other]) => other === key).map(([, ...place]) => place);
      matrix.mark(own, at?.[0] === key ? at.slice(1) : null);
    }
    // unchanged text is not written again: it would be read aloud again
    if (this.box.title.textContent !== title) this.box.title.textContent = title;
    if (this.box.text.textContent !== text) this.box.text.textContent = text;
  }

  // What is said, and the cells that are marked, at a cell, a row or nothing.
  explained(at) {
    const [title, text] = HINT;
    if (!at) return { cells: this.steps.used ? this.steps.cells : [], title, text };
    if (at[0] !== "row") return this.found.explain(...at);
    const keys = ["out", ...this.perHead()];
    return { cells: keys.map((key) => [key, at[1], null]), title, text };
  }

  // The keys of the scores and weights of all heads.
  perHead() {
    return this.found.answer.weights.flatMap((_, head) => [`e${head}`, `a${head}`]);
  }

  exists([key, i, j]) {
    const matrix = this.made[key];
    return matrix?.root.isConnected && matrix.values[i]?.[j] !== undefined;
  }

  shownMatrices() {
    const projections = ["x", "wq", "wk", "wv", "placed", "q", "k", "v", "rq", "rk"];
    const keys = [...projections, ...this.perHead(), "out"];
    return keys.map((key) => this.made[key]).filter((matrix) => matrix?.root.isConnected);
  }

  caption() {
    const asked = this.found?.asked ?? this.options;
    const { score, mask, heads, positions } = asked;
    const where = this.found ? symbols(asked, this.found.width, this.found.answer.slopes) : [];
    const file = ["build-attention", score];
    if (mask !== "none") file.push(mask);
    if (heads > 1) file.push(`${heads}-heads`);
    if (positions !== "none") file.push(positions);
    return {
      title: `Attention by hand: ${attentionFormula(asked)}`,
      source: `Self-attention computed in 64-bit numbers: ${
        [inWords(asked), ...where].join("; ")
      }.`,
      file: file.join("-"),
    };
  }

  figures() {
    if (!this.found) return [];
    const lines = titled(this.linesTitle.textContent, this.lines.svg());
    return [...this.shownMatrices().map((matrix) => matrix.svg()), lines];
  }

  data() {
    return {
      formula: attentionFormula(this.found?.asked ?? this.options),
      inputs: this.found?.names,
      options: this.found?.asked,
      result: this.found?.answer,
    };
  }
}

// A figure with a title above it.
function titled(title, figure) {
  if (!figure) return null;
  figure.setAttribute("y", 24);
  const width = figure.getAttribute("width");
  const height = Number(figure.getAttribute("height")) + 24;
  return s("svg", { width, height }, heading(title, 4), figure);
}

// Make these the children of a box; children that stay keep the focus and their place.
function place(box, nodes) {
  const wanted = nodes.filter(Boolean);
  for (const node of [...box.children]) if (!wanted.includes(node)) node.remove();
  wanted.forEach((node, i) => {
    if (box.children[i] !== node) box.insertBefore(node, box.children[i] ?? null);
  });
}
