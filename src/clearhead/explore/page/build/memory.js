/** A recurrent memory with decay γ beside attention: what is left of each input. */

import { get } from "../api.js";
import { HeatMap, whole } from "../attention/heat_map.js";
import { slide } from "../controls.js";
import { h, later } from "../dom.js";
import { Curves } from "../figures/curves.js";
import { total } from "../numbers.js";
import { equals, exp, num, over, plus, written } from "./arithmetic.js";

const LENGTH = 24; // inputs
const ABOUT =
  "The memory after input n is mₙ = γ·mₙ₋₁ + xₙ, so that input k has the weight γⁿ⁻ᵏ in it: all inputs decay alike, however important they are. Attention keeps all inputs and computes their weights anew for each query. Here the query equals input 1, and its weight stays high. An analogy from the lecture: the inputs are guests who arrive at a party one after another, and the memory is what the host remembers of them.";

export class Memory {
  constructor(view) {
    this.view = view;
    this.left = new HeatMap({
      title: "Weight of each input in the memory",
      axes: ["after input", "input"],
      fixed: 1,
      tall: 400,
      what: "weight",
    });
    this.share = new Curves({
      title: "Input 1: its share of the memory, and its attention weight",
      label: "input number",
      unit: "share",
      tall: 300,
    });
    this.fields = h("div", { class: "row" });
    this.note = h("p", { class: "verdict", "aria-live": "polite" });
    this.figuresBox = h("div", { class: "two" }, this.left.root, this.share.root);
    const about = h("p", { class: "what" }, ABOUT);
    this.root = h("section", { class: "panel" }, this.fields, about, this.figuresBox, this.note);
  }

  lead() {
    return [
      "A recurrent memory with decay γ loses its oldest inputs first. Attention can still give any of them a high weight.",
    ];
  }

  sliders() {
    const again = later(() => this.compute(), 40);
    const options = this.view.options;
    this.fields.replaceChildren(
      slide("decay γ of the memory", {
        min: 0.3,
        max: 1,
        step: 0.01,
        value: options.gamma,
        show: (x) => `${x.toFixed(2)}${x === 1 ? ": no decay" : ""}`,
        change: (x) => {
          options.gamma = x;
          again();
        },
      }),
      slide("sharpness of attention", {
        min: 0,
        max: 12,
        step: 0.5,
        value: options.sharp,
        change: (x) => {
          options.sharp = x;
          again();
        },
      }),
    );
  }

  open() {
    this.sliders();
    this.compute(false);
  }

  close() {}

  // changed: by the user, and so to be written into the address
  async compute(changed = true) {
    if (changed) this.view.remember();
    const asked = {
      gamma: this.view.options.gamma,
      length: LENGTH,
      sharpness: this.view.options.sharp,
    };
    this.asking?.abort();
    const own = (this.asking = new AbortController());
    try {
      const answer = await get("memory", asked, own.signal);
      if (this.asking !== own) return;
      this.found = { asked, answer };
      this.figuresBox.hidden = false;
      this.draw();
      this.view.settled();
    } catch (trouble) {
      if (this.asking !== own || trouble.name === "AbortError") return;
      this.figuresBox.hidden = Boolean(!trouble.offline || !this.found);
      this.view.activity.fail(trouble);
    }
  }

  draw() {
    const { asked, answer } = this.found;
    const names = answer.left.map((_, i) => String(i + 1));
    this.left.call(`Weight of each input in the memory: γ^age, γ = ${written(asked.gamma)}`);
    this.left.show(whole(names, names, answer.left, 1), true);
    const memory = answer.share.map((row, i) => [i + 1, row[0]]);
    const attention = answer.attention.map((x, i) => [i + 1, x]);
    const lines = [
      { name: "memory", points: memory },
      { name: "attention", points: attention },
    ];
    this.share.show(lines, { limits: [0, 1] });
    this.note.textContent = this.verdict(names.length);
  }

  // The share of input 1 after n inputs, with its arithmetic.
  verdict(n) {
    const {
      asked: { sharpness },
      answer,
    } = this.found;
    const left = answer.left[n - 1];
    const memory = equals(over(num(left[0]), num(total(left))), answer.share[n - 1][0]);
    // the sum is in brackets: it is bound as loosely as any
    const all = { ...plus(exp(sharpness), num(n - 1)), loose: 2 };
    const attention = equals(over(exp(sharpness), all), answer.attention[n - 1]);
    const powers = `γ^${n - 1} / (1 + γ + … + γ^${n - 1})`;
    const share = `After ${n} inputs, the share of input 1 is ${powers} = ${memory} in the memory`;
    return `${share}, and ${attention} for attention.`;
  }

  caption() {
    const { gamma, sharp } = this.view.options;
    return {
      title: `A recurrent memory with decay γ = ${written(gamma)}, and attention`,
      source:
        `Weight γⁿ⁻ᵏ of input k in the memory after input n; share of input 1 in the memory, and its attention weight e^s / (e^s + n − 1) with sharpness s = ${
          written(
            sharp,
          )
        }.`,
      file: `build-memory-gamma-${gamma}`,
    };
  }

  figures() {
    return this.found ? [this.left.svg(), this.share.svg()] : [];
  }

  data() {
    return { options: this.found?.asked, result: this.found?.answer };
  }
}
