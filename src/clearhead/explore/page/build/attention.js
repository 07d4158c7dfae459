/**
 * Attention by hand: editable matrices, every result with its arithmetic, the softmax step by step,
 * and whether order matters.
 */

import { post } from "../api.js";
import { tint } from "../colours.js";
import { choose, h, later, s, slide } from "../dom.js";
import { Matrix } from "../matrix.js";
import { TokenLines } from "../tokens.js";
import { Computation, shown } from "./arithmetic.js";
import { attentionFormula, captions, inWords, symbols } from "./formula.js";
import {
  changeHeads,
  changeInputs,
  copy,
  EXAMPLE,
  MASKS,
  MOST_INPUTS,
  names,
  pad,
  POSITIONS,
  SCORES,
} from "./options.js";
import { Steps } from "./steps.js";

const HINT = [
  "Where does a number come from?",
  "Point at any number, tap it, or move to it with Tab and the arrow keys.",
];
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
    this.explanation = h(
      "div",
      { class: "explanation", id: "explanation", "aria-live": "polite" },
      this.box.title,
      this.box.text,
    );
    const group = (title, ...parts) => {
      const body = h("div", { class: "matrices" }, parts);
      return {
        body,
        root: h("section", { class: "group", "aria-label": title }, h("h2", {}, title), body),
      };
    };
    const inputs = group(
      "Inputs and projections: change any number",
      ["x", "wq", "wk", "wv"].map((key) => this.matrix(key).root),
    );
    this.groups = {
      projected: group("Queries, keys, values"),
      scores: group("Scores and weights"),
      out: group("Outputs", this.matrix("out").root),
    };
    this.lines = new TokenLines({
      label: ["key", "query"],
      point: (at) => this.pointRow(at?.[0] === "below" ? at[1] : null),
    });
    this.linesTitle = h("h2", {});
    this.steps = new Steps({ mark: () => this.light() });
    this.verdict = h("p", { class: "verdict", "aria-live": "polite" });
    this.flow = h(
      "div",
      {
        class: "flow-groups",
        onpointerleave: () => {
          this.under = null;
          this.light();
        },
      },
      inputs.root,
      this.groups.projected.root,
      this.groups.scores.root,
      this.groups.out.root,
      h("section", { class: "group grow" }, this.linesTitle, this.lines.root),
    );
    this.below = h(
      "div",
      {},
      this.steps.root,
      h("h2", {}, "Does the order matter?"),
      this.orders(),
      this.verdict,
    );
    this.root = h(
      "section",
      { class: "panel" },
      this.controls(),
      this.explanation,
      this.flow,
      this.below,
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

  controls() {
    const set = (key) => (value) => {
      this.options[key] = value;
      this.compute();
    };
    this.fields = {
      score: choose("score", SCORES, "dot", set("score"), { id: "score" }),
      mask: choose("mask", MASKS, "none", set("mask"), { id: "mask" }),
      heads: choose(
        "heads",
        [1, 2, 3],
        1,
        (n) => {
          changeHeads(this.options, Number(n));
          this.compute();
        },
        { id: "heads" },
      ),
      positions: choose(
        "positions",
        POSITIONS,
        "none",
        (kind) => {
          this.options.positions = kind;
          pad(this.options);
          this.compute();
        },
        { id: "positions" },
      ),
      sharpness: slide("sharpness", {
        min: -2,
        max: 3,
        step: 0.05,
        value: 0,
        show: (x) =>
          x >= 2.99 ? "1000: a dictionary lookup" : String(Number((10 ** x).toPrecision(2))),
        change: (x) => {
          if (!this.setting) set("sharpness")(Number((10 ** x).toPrecision(x >= 2.99 ? 1 : 2)));
        },
      }),
    };
    this.fields.sharpness.classList.add("sharpness");
    return h(
      "div",
      { class: "row controls" },
      Object.values(this.fields),
      h(
        "button",
        {
          type: "button",
          id: "reset",
          onclick: () => {
            Object.assign(this.options, copy(EXAMPLE));
            this.sync();
            this.compute();
          },
        },
        "Reset to the example",
      ),
    );
  }

  orders() {
    const button = (id, text, go) =>
      h(
        "button",
        {
          type: "button",
          id,
          onclick: (event) => {
            if (event.currentTarget.getAttribute("aria-disabled") !== "true") {
              go(this.options);
              this.compute();
            }
          },
        },
        text,
      );
    this.more = button("more", "Add an input", (options) => changeInputs(options, 1));
    this.less = button("less", "Remove the last input", (options) => changeInputs(options, -1));
    return h(
      "div",
      { class: "row" },
      button("permute", "Move the first input to the end", (options) => {
        options.order = [...options.order.slice(1), options.order[0]];
      }),
      button("swap", "Swap the first two inputs", (options) => {
        const [a, b, ...rest] = options.order;
        options.order = b === undefined ? [a] : [b, a, ...rest];
      }),
      button("unpermute", "Original order", (options) => {
        options.order = options.x.map((_, i) => i);
      }),
      this.more,
      this.less,
    );
  }

  // Show the options in the controls.
  sync() {
    for (const key of ["score", "mask", "heads", "positions"]) {
      this.fields[key].querySelector("select").value = String(this.options[key]);
    }
    const input = this.fields.sharpness.querySelector("input");
    this.setting = true;
    input.value = Math.log10(Math.max(this.options.sharpness, 0.01));
    input.dispatchEvent(new Event("input"));
    this.setting = false;
  }

  matrix(key) {
    this.made[key] ??= new Matrix({
      most: /^a\d/.test(key) ? 1 : null,
      change: /^(x|w.)$/.test(key)
        ? (values) => {
          this.keep(key, values);
          this.soon();
        }
        : null,
      point: (at, focus) => this.pointCell(key, at, focus),
    });
    return this.made[key];
  }

  // The rows of X are shown in their present order: edited values go back to the inputs they belong
  // to.
  keep(key, values) {
    if (key === "x") {
      this.options.order.forEach((word, i) => {
        this.options.x[word] = [...values[i]];
      });
    } else this.options[key] = copy(values);
  }

  open() {
    this.sync();
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
    this.asking?.abort();
    const own = (this.asking = new AbortController());
    try {
      const answer = await post(
        "build",
        {
          x,
          wq,
          wk,
          wv,
          score,
          sharpness,
          heads,
          positions,
          order,
          causal: mask === "causal",
          window: mask === "window" ? 2 : null,
        },
        own.signal,
      );
      if (this.asking !== own) return;
      this.found = new Computation(asked, answer, named);
      this.flow.hidden = this.below.hidden = false;
      this.draw();
      this.view.settled();
    } catch (trouble) {
      if (this.asking !== own || trouble.name === "AbortError") return;
      this.flow.hidden = this.below.hidden = Boolean(!trouble.offline || !this.found);
      this.view.activity.fail(trouble);
    }
  }

  draw() {
    const { asked, answer, names: rows, width, heads } = this.found;
    const about = captions(asked, width, null);
    const many = heads > 1;
    const show = (key, name, values, more = {}) => {
      this.matrix(key).show(values, { name, about: about[key], rows, ...more });
      return this.matrix(key).root;
    };
    show("x", "X", copy(asked.x));
    for (const key of ["wq", "wk", "wv"]) {
      show(key, `W${key[1]}`, copy(asked[key]), { rows: null, heads });
    }
    const placed = asked.positions === "sinusoid";
    const rotary = asked.positions === "rotary";
    const repeated = true;
    place(this.groups.projected.body, [
      placed && show("placed", "X + P", answer.x),
      show("q", "Q", beside(answer.projected_q), { heads, repeated: placed }),
      show("k", "K", beside(answer.projected_k), { heads, repeated }),
      show("v", "V", beside(answer.v), { heads, repeated }),
      rotary && show("rq", "Q′", beside(answer.q), { heads }),
      rotary && show("rk", "K′", beside(answer.k), { heads, repeated }),
    ]);
    place(
      this.groups.scores.body,
      answer.weights.flatMap((weights, head) => [
        show(`e${head}`, this.found.name("E", head), answer.scores[head], {
          about: captions(asked, width, answer.slopes?.[head] ?? null).e,
          columns: rows,
          masked: answer.masked,
          text: scored,
        }),
        show(`a${head}`, this.found.name("A", head), weights, {
          about: about.a,
          columns: rows,
          masked: answer.masked,
          text: weight,
        }),
      ]),
    );
    show("out", "Y", answer.out, { heads });
    this.linesTitle.textContent = many
      ? `Weights as lines, mean of ${heads} heads`
      : "Weights as lines";
    this.lines.show({
      above: rows,
      below: rows,
      weights: answer.weights[0].map((row, i) =>
        row.map((_, j) => answer.weights.reduce((sum, one) => sum + one[i][j], 0) / heads)
      ),
    });
    this.steps.show(this.found);
    this.judge();
    this.more.setAttribute("aria-disabled", String(rows.length >= MOST_INPUTS));
    this.less.setAttribute("aria-disabled", String(rows.length <= 1));
    this.light();
  }

  // Say whether the order of the inputs changed their outputs.
  judge() {
    const { asked, answer } = this.found;
    const moved = asked.order.some((word, i) => word !== i);
    const same = answer.moved <= 1e-9 * Math.max(1, ...answer.out.flat().map(Math.abs));
    const why = [asked.positions !== "none" && "positions", asked.mask !== "none" && "the mask"]
      .filter(Boolean)
      .join(" and ");
    this.verdict.textContent = !moved
      ? "Move the inputs and see whether their outputs move with them, unchanged."
      : same
      ? "The outputs moved with their inputs and are the same numbers: self-attention treats its inputs as a set (it is permutation equivariant)."
      : `The outputs changed by up to ${shown(answer.moved)}: ${why} made the order matter.`;
    this.verdict.classList.toggle("same", moved && same);
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
    const at =
      [this.under, this.held].find((one) => one && (one[0] === "row" || this.exists(one))) ?? null;
    let cells = this.steps.used ? this.steps.cells : [];
    let title = HINT[0];
    let text = HINT[1];
    if (at?.[0] === "row") {
      cells = [
        "out",
        ...this.found.answer.weights.flatMap((_, head) => [`e${head}`, `a${head}`]),
      ].map((key) => [key, at[1], null]);
    } else if (at) ({ cells, title, text } = this.found.explain(...at));
    for (const [key, matrix] of Object.entries(this.made)) {
      matrix.mark(
        cells.filter(([own]) => own === key).map(([, ...place]) => place),
        at?.[0] === key ? at.slice(1) : null,
      );
    }
    if (this.box.title.textContent !== title) this.box.title.textContent = title;
    if (this.box.text.textContent !== text) this.box.text.textContent = text;
  }

  exists([key, i, j]) {
    const matrix = this.made[key];
    return matrix?.root.isConnected && matrix.values[i]?.[j] !== undefined;
  }

  shownMatrices() {
    return [
      "x",
      "wq",
      "wk",
      "wv",
      "placed",
      "q",
      "k",
      "v",
      "rq",
      "rk",
      ...this.found.answer.weights.flatMap((_, head) => [`e${head}`, `a${head}`]),
      "out",
    ]
      .map((key) => this.made[key])
      .filter((one) => one?.root.isConnected);
  }

  caption() {
    const asked = this.found?.asked ?? this.options;
    const { score, mask, heads, positions } = asked;
    return {
      title: `Attention by hand: ${attentionFormula(asked)}`,
      source: `Self-attention computed in 64-bit numbers: ${
        [
          inWords(asked),
          ...(this.found ? symbols(asked, this.found.width, this.found.answer.slopes) : []),
        ].join("; ")
      }.`,
      file: [
        "build-attention",
        score,
        mask === "none" ? null : mask,
        heads > 1 ? `${heads}-heads` : null,
        positions === "none" ? null : positions,
      ]
        .filter(Boolean)
        .join("-"),
    };
  }

  figures() {
    return this.found
      ? [
        ...this.shownMatrices().map((one) => one.svg()),
        titled(this.linesTitle.textContent, this.lines.svg()),
      ]
      : [];
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
  return s(
    "svg",
    { width: figure.getAttribute("width"), height: Number(figure.getAttribute("height")) + 24 },
    s("text", { x: 4, y: 14, "font-size": 14, "font-weight": 600, fill: tint("ink") }, title),
    figure,
  );
}

// Make these the children of a box; children that stay keep the focus and their place.
function place(box, nodes) {
  const wanted = nodes.filter(Boolean);
  for (const node of [...box.children]) if (!wanted.includes(node)) node.remove();
  wanted.forEach((node, i) => {
    if (box.children[i] !== node) box.insertBefore(node, box.children[i] ?? null);
  });
}
