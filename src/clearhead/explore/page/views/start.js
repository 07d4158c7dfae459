/** Start: one finished example, and the guided path through the lectures. */

import { sentence } from "../activity.js";
import { floats, get, lines, rowsOf } from "../api.js";
import { h } from "../dom.js";
import { address, kept, opened, STEPS } from "../path.js";
import { TokenLines } from "../tokens.js";
import { View } from "../view.js";

const EXAMPLE = { model: "fr-en", text: "Je la mange.", beams: 1 };

export class Start extends View {
  constructor(frame) {
    super(
      frame,
      "start",
      "Look inside attention",
      "Compute it by hand, watch it translate, write, read, look at images and describe them, and switch parts of it off.",
    );
    this.next = h("div", { class: "row" });
    this.lines = new TokenLines();
    this.words = h("p", { class: "note" });
    this.example = h(
      "figure",
      { class: "example" },
      this.lines.root,
      h("figcaption", {}, this.words),
    );
    this.steps = h("ol", { class: "steps" });
    this.others = h("p", { class: "remark", hidden: true }); // models that no view shows, and why
    this.root.append(
      h(
        "div",
        { class: "welcome" },
        this.example,
        h(
          "div",
          {},
          h(
            "p",
            {},
            `${STEPS.length} steps lead from three inputs to models of text and of images. Each opens a view in a prepared state, with something to see and something to try.`,
          ),
          this.next,
        ),
      ),
      this.others,
      this.steps,
    );
  }

  enter() {
    const at = kept();
    const done = opened();
    const next = at < 0 ? 0 : at;
    this.next.replaceChildren(
      h(
        "a",
        { class: "button go", href: address(next) },
        at < 0 ? "Begin with step 1" : `Continue with step ${next + 1}: ${STEPS[next][0]}`,
      ),
    );
    this.steps.replaceChildren(
      ...STEPS.map(([title, , text, task], i) =>
        h(
          "li",
          { class: i === at ? "now" : done.has(i) ? "done" : "" },
          h("a", { href: address(i) }, h("b", {}, title)),
          h("p", {}, text),
          h("p", { class: "try" }, h("b", {}, "Try: "), task),
        )
      ),
    );
    this.frame
      .models()
      .then((all) => {
        this.others.textContent = all
          .filter((one) => !one.kinds.length)
          .map((one) =>
            sentence({
              message: `No view shows the model ${one.name}: ${
                one.error ?? one.why ?? "it does nothing that a view shows"
              }`,
            })
          )
          .join(" ");
        this.others.hidden = !this.others.textContent;
      })
      .catch(() => {});
    this.result ??= this.compute().catch(() => {
      this.result = null;
      this.example.hidden = true;
    }); // the frame says if the server does not answer
  }

  // A short translation with its lines.
  async compute() {
    const found = {};
    for await (const event of lines("translate", EXAMPLE)) {
      if (event.translations) {
        Object.assign(found, { text: event.translations[0].text, look: event.looks[0] });
      }
    }
    const given = { look: found.look.id, group: "cross" };
    const [names, weights] = await Promise.all([
      get("looks/words", given),
      floats("looks/map", { ...given, by: "words", format: "float32" }),
    ]);
    this.example.hidden = false;
    this.lines.show({
      above: names.columns,
      below: names.rows,
      weights: rowsOf(weights),
      label: ["source", "translation"],
    });
    this.words.replaceChildren(
      "Each word of the translation attends to the French words: the lines of ",
      h("b", {}, "la"),
      " and ",
      h("b", {}, "mange"),
      " cross, because English puts the pronoun after the verb. ",
      h("a", { href: "#translate?model=fr-en&text=Je+la+mange." }, "Open it in Translate"),
    );
    return {
      ...EXAMPLE,
      translation: found.text,
      queries: names.rows,
      keys: names.columns,
      weights: rowsOf(weights),
    };
  }

  caption() {
    return {
      title: "Je la mange.",
      source: "fr-en · Cross-attention, mean of all heads",
      file: "start",
    };
  }
  figures() {
    return [this.lines.svg("Cross-attention, mean of all heads")];
  }
  async data() {
    return (await this.result) ?? {};
  }
}
