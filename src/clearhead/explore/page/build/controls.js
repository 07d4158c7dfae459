/** The controls of attention by hand: the options of its formula, and the order of its inputs. */

import { button, choose, slide } from "../controls.js";
import { h } from "../dom.js";
import {
  changeHeads,
  changeInputs,
  MASKS,
  MOST_INPUTS,
  pad,
  POSITIONS,
  SCORES,
} from "./options.js";

const SHARPEST = 2.99; // on the slider: attention as a dictionary lookup

/** The options; set(key, value) changes one of them, computed() follows any other change. */
export class Controls {
  constructor({ options, set, computed, reset }) {
    this.options = options;
    const change = (key) => (value) => set(key, value);
    const heads = (n) => {
      changeHeads(options(), Number(n));
      computed();
    };
    const positions = (kind) => {
      options().positions = kind;
      pad(options());
      computed();
    };
    this.fields = {
      score: choose("score", SCORES, "dot", change("score"), { id: "score" }),
      mask: choose("mask", MASKS, "none", change("mask"), { id: "mask" }),
      heads: choose("heads", [1, 2, 3], 1, heads, { id: "heads" }),
      positions: choose("positions", POSITIONS, "none", positions, { id: "positions" }),
      sharpness: this.sharpness(change("sharpness")),
    };
    const restart = button("Reset to the example", reset, { id: "reset" });
    this.root = h("div", { class: "row controls" }, Object.values(this.fields), restart);
  }

  // A power of ten.
  sharpness(set) {
    const digits = (x) => Number((10 ** x).toPrecision(x >= SHARPEST ? 1 : 2));
    const field = slide("sharpness", {
      min: -2,
      max: 3,
      step: 0.05,
      value: 0,
      show: (x) => (x >= SHARPEST ? "1000: a dictionary lookup" : String(digits(x))),
      change: (x) => set(digits(x)),
    });
    field.classList.add("sharpness");
    return field;
  }

  // Show the options.
  sync() {
    const options = this.options();
    for (const key of ["score", "mask", "heads", "positions"]) this.fields[key].set(options[key]);
    this.fields.sharpness.set(Math.log10(Math.max(options.sharpness, 0.01)));
  }
}

/** The buttons that move, add and remove inputs; computed() follows each change. */
export class Orders {
  constructor({ options, computed }) {
    const action = (id, text, change) => {
      const press = (event) => {
        // not `disabled`: the button keeps the focus
        if (event.currentTarget.getAttribute("aria-disabled") === "true") return;
        change(options());
        computed();
      };
      return button(text, press, { id });
    };
    const rotate = (own) => {
      const [first, ...rest] = own.order;
      own.order = [...rest, first];
    };
    const swap = (own) => {
      const [a, b, ...rest] = own.order;
      own.order = b === undefined ? [a] : [b, a, ...rest];
    };
    const original = (own) => {
      own.order = own.x.map((_, i) => i);
    };
    this.more = action("more", "Add an input", (own) => changeInputs(own, 1));
    this.less = action("less", "Remove the last input", (own) => changeInputs(own, -1));
    this.root = h(
      "div",
      { class: "row" },
      action("permute", "Move the first input to the end", rotate),
      action("swap", "Swap the first two inputs", swap),
      action("unpermute", "Original order", original),
      this.more,
      this.less,
    );
  }

  // How many inputs there are.
  show(count) {
    this.more.setAttribute("aria-disabled", String(count >= MOST_INPUTS));
    this.less.setAttribute("aria-disabled", String(count <= 1));
  }
}
