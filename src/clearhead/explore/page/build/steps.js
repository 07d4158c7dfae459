/** The softmax and the weighted sum of one query, one step at a time. */

import { choose } from "../controls.js";
import { h } from "../dom.js";
import { equals, exp, minus, num, over, plus, shown, written } from "./arithmetic.js";

const PACE = 1600; // milliseconds per step while it plays

// a power of e is never 0
const tending = (one, x) => (x === 0 ? `${one.text} ≈ 0` : equals(one, x));
const vector = (row) => `[${row.map(shown).join(", ")}]`;

export class Steps {
  // mark: called when another step is shown; `cells` has the cells of the matrices that it is about
  constructor({ mark }) {
    Object.assign(this, { mark, query: 0, head: 0, at: 0, timer: null, cells: [], used: false });
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.still.addEventListener("change", () => this.draw());
    this.pickers = h("span", { class: "row" });
    const button = (id, text, go) => h("button", { type: "button", id, onclick: go }, text);
    this.back = button("step-back", "Step back", () => {
      this.pause();
      this.go(this.at - 1);
    });
    this.player = button("step-play", "Play", () => this.play());
    this.next = button("step-next", "Next step", () => {
      this.pause();
      this.go(this.at + 1);
    });
    this.count = h("span", { class: "count" });
    this.text = h("p", { class: "steptext", "aria-live": "polite" });
    this.table = h("table", { class: "matrix steptable" });
    this.root = h(
      "section",
      { class: "stepwise", "aria-label": "Softmax and weighted sum, step by step" },
      h("h2", {}, "Softmax and weighted sum, step by step"),
      h("div", { class: "row" }, this.pickers, this.back, this.player, this.next, this.count),
      this.text,
      h("div", { class: "scroll" }, this.table),
    );
  }

  // Show the steps for a computation; the step stays if it has as many.
  show(found) {
    const sizes = (one) => one && `${one.heads} ${one.names.join("\n")}`;
    const same = sizes(found) === sizes(this.found);
    this.found = found;
    this.at = Math.min(this.at, this.last());
    this.query = Math.min(this.query, found.names.length - 1);
    this.head = Math.min(this.head, found.heads - 1);
    if (!same) {
      const pick = (name) => (value) => {
        this[name] = Number(value);
        this.pause();
        this.go(this.at);
      };
      const heads = Array.from({ length: found.heads }, (_, i) => i);
      const id = "step-head";
      this.pickers.replaceChildren(
        choose(
          "query",
          found.names.map((name, i) => [i, name]),
          this.query,
          pick("query"),
          { id: "step-query" },
        ),
        ...(found.heads > 1 ? [choose("head", heads, this.head, pick("head"), { id })] : []),
      );
    }
    this.draw();
  }

  last() {
    return this.found.names.length + 5;
  }

  go(at) {
    this.at = Math.min(Math.max(at, 0), this.last());
    this.used = true;
    this.draw();
    this.mark();
  }

  // With reduced motion nothing moves by itself: the button shows all steps at once.
  play() {
    if (this.timer) return this.pause();
    if (this.still.matches) return this.go(this.last());
    if (this.at === this.last()) this.at = -1;
    const on = () => {
      this.go(this.at + 1);
      if (this.at === this.last()) this.pause();
    };
    this.timer = setInterval(on, PACE);
    on();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    if (this.found) this.labels();
  }

  labels() {
    const start = this.still.matches ? "Show all steps" : "Play";
    this.player.textContent = this.timer ? "Pause" : start;
    this.back.setAttribute("aria-disabled", String(this.at === 0));
    this.next.setAttribute("aria-disabled", String(this.at === this.last()));
    this.count.textContent = `step ${this.at + 1} of ${this.last() + 1}`;
  }

  // The numbers of all steps.
  numbers() {
    const { found, query: i, head } = this;
    const { answer } = found;
    const scores = found.names.map((_, j) => found.score(head, i, j));
    const most = found.largest(head, i);
    const below = scores.map((e) => e - most);
    const powers = below.map(Math.exp);
    const sum = powers.reduce((a, b) => a + b, 0);
    const values = answer.v[head];
    const weights = answer.weights[head][i];
    const parts = values.map((row, j) => row.map((x) => weights[j] * x));
    const out = answer.out[i].slice(head * found.valueWidth, (head + 1) * found.valueWidth);
    return { scores, most, below, powers, sum, weights, values, parts, out };
  }

  // The sentence of the current step, and the cells it is about.
  sentence(n) {
    const { found, query: i, head, at } = this;
    const name = found.names;
    const a = `a${head}`;
    const e = `e${head}`;
    const v = (j) =>
      Array.from({ length: found.valueWidth }, (_, c) => ["v", j, head * found.valueWidth + c]);
    const masked = n.scores.map((score) => score === -Infinity);
    const list = (text, instead = "masked: 0") =>
      name.map((_, j) => (masked[j] ? instead : text(j))).join(",  ");
    if (at === 0) {
      return [
        `The scores of ${name[i]}: a row of ${found.name("E", head)}. ${
          masked.includes(true) ? "Masked scores are −∞." : ""
        }`,
        [[e, i, null]],
      ];
    }
    if (at === 1) {
      const below = (j) => equals(minus(num(n.scores[j]), num(n.most)), n.below[j]);
      const largest = written(n.most);
      const why = "The weights stay the same, and no power can overflow";
      const text = `Subtract the largest score, ${largest}. ${why}: ${list(below, "masked: −∞")}`;
      return [text, [[e, i, null]]];
    }
    if (at === 2) {
      return [
        `Exponentiate: ${list((j) => tending(exp(n.below[j]), n.powers[j]))}`,
        [[e, i, null]],
      ];
    }
    if (at === 3) return [`Sum: ${equals(plus(...n.powers.map(num)), n.sum)}`, [[e, i, null]]];
    if (at === 4) {
      const weights = list((j) => tending(over(num(n.powers[j]), num(n.sum)), n.weights[j]));
      return [
        `Divide by the sum: ${weights}. These are the weights, and their sum is 1.`,
        [[a, i, null]],
      ];
    }
    const j = at - 5;
    if (j < name.length) {
      // "=" only where the numbers as they are written give the product as it is written
      const product = (x) => num(n.weights[j]).value * Number(x.toFixed(3));
      const same = n.values[j].every((x, c) => product(x).toFixed(3) === n.parts[j][c].toFixed(3));
      const factors = `${written(n.weights[j])} · ${vector(n.values[j])}`;
      const equation = `${factors} ${same ? "=" : "≈"} ${vector(n.parts[j])}`;
      return [`The weight of ${name[j]} times its value: ${equation}`, [[a, i, j], ...v(j)]];
    }
    const inHead = found.heads > 1 ? ` in head ${head}` : "";
    const text = `The sum of the weighted values is the output of ${name[i]}${inHead}`;
    const out = v(i).map(([, ...place]) => ["out", ...place]);
    return [`${text}: ${vector(n.out)}`, [...v(null), ...out]];
  }

  draw() {
    if (!this.found) return;
    const n = this.numbers();
    const { names } = this.found;
    const cell = (from, text, here = false) =>
      h(
        "td",
        { class: here ? "lit" : null },
        h("span", { class: this.at < from || text === "" ? "later" : null }, h("span", {}, text)),
      );
    const infinite = (x) => (x === -Infinity ? "−∞" : shown(x));
    const row = (title, from, list, sum = "", at = from) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, title),
        list.map((text) => cell(from, text, this.at === from)),
        cell(at, sum, this.at === at && sum !== ""),
      );
    const tiny = (x, j) => (n.scores[j] !== -Infinity && x === 0 ? "≈ 0" : shown(x));
    this.table.replaceChildren(
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("td", {}),
          names.map((name) => h("th", { scope: "col" }, name)),
          h("th", { scope: "col" }, "sum"),
        ),
      ),
      h(
        "tbody",
        {},
        row("score", 0, n.scores.map(infinite)),
        row(`score − ${shown(n.most)}`, 1, n.below.map(infinite)),
        row("power of e", 2, n.powers.map(tiny), shown(n.sum), 3),
        row("weight", 4, n.weights.map(tiny), "1"),
        row("value", 5, n.values.map(vector), "", 5),
        h(
          "tr",
          {},
          h("th", { scope: "row" }, "weight · value"),
          n.parts.map((part, j) => cell(5 + j, vector(part), this.at === 5 + j)),
          cell(this.last(), vector(n.out), this.at === this.last()),
        ),
      ),
    );
    this.table.setAttribute("aria-label", `Steps for ${names[this.query]}`);
    [this.text.textContent, this.cells] = this.sentence(n);
    this.labels();
  }
}
