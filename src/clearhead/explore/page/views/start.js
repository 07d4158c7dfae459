/** Start: one finished example, and the guided path through the lectures. */

import { sentence } from "../activity.js";
import { floats, get, lines, rowsOf } from "../api.js";
import { TokenLines } from "../attention/token_lines.js";
import { h } from "../dom.js";
import { View } from "../panes/view.js";
import { address, kept, opened } from "../path/path.js";
import { STEPS } from "../path/steps.js";

const EXAMPLE = { model: "fr-en", text: "Je la mange.", beams: 1 };
const TITLE = "Cross-attention, mean of all heads";

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
    const caption = h("figcaption", {}, this.words);
    this.example = h("figure", { class: "example" }, this.lines.root, caption);
    this.steps = h("ol", { class: "steps" });
    this.others = h("p", { class: "remark", hidden: true }); // models that no view shows, and why
    const about =
      `${STEPS.length} steps lead from three inputs to models of text and of images. Each opens a view in a prepared state, with something to see and something to try.`;
    const path = h("div", {}, h("p", {}, about), this.next);
    const welcome = h("div", { class: "welcome" }, this.example, path);
    this.root.append(welcome, this.others, this.steps);
  }

  enter() {
    this.showPath(kept(), opened());
    // the frame says if the server does not answer
    this.frame
      .models()
      .then((all) => this.showOthers(all))
      .catch(() => {});
    this.result ??= this.compute().catch(() => {
      this.result = null;
      this.example.hidden = true;
    });
  }

  // at: the number of the last opened step; done: those of all opened ones
  showPath(at, done) {
    const next = Math.max(at, 0);
    const word = at < 0 ? "Begin with step 1" : `Continue with step ${next + 1}: ${STEPS[next][0]}`;
    this.next.replaceChildren(h("a", { class: "button go", href: address(next) }, word));
    const items = STEPS.map(([title, , text, task], i) => {
      const state = done.has(i) ? "done" : "";
      return h(
        "li",
        { class: i === at ? "now" : state },
        h("a", { href: address(i) }, h("b", {}, title)),
        h("p", {}, text),
        h("p", { class: "try" }, h("b", {}, "Try: "), task),
      );
    });
    this.steps.replaceChildren(...items);
  }

  showOthers(models) {
    const unseen = models.filter(({ kinds }) => !kinds.length);
    const said = unseen.map(({ name, error, why }) => {
      const reason = error ?? why ?? "it does nothing that a view shows";
      return sentence({ message: `No view shows the model ${name}: ${reason}` });
    });
    this.others.textContent = said.join(" ");
    this.others.hidden = !said.length;
  }

  // A short translation with its lines.
  async compute() {
    let text;
    let look;
    for await (const event of lines("translate", EXAMPLE)) {
      if (!event.translations) continue;
      [{ text }] = event.translations;
      [look] = event.looks;
    }
    const given = { look: look.id, group: "cross" };
    const [names, map] = await Promise.all([
      get("looks/words", given),
      floats("looks/map", { ...given, by: "words", format: "float32" }),
    ]);
    const [keys, queries, weights] = [names.columns, names.rows, rowsOf(map)];
    this.example.hidden = false;
    this.lines.show({ above: keys, below: queries, weights, label: ["source", "translation"] });
    this.words.replaceChildren(
      "Each word of the translation attends to the French words: the lines of ",
      h("b", {}, "la"),
      " and ",
      h("b", {}, "mange"),
      " cross, because English puts the pronoun after the verb. ",
      h("a", { href: "#translate?model=fr-en&text=Je+la+mange." }, "Open it in Translate"),
    );
    return { ...EXAMPLE, translation: text, queries, keys, weights };
  }

  caption() {
    return { title: EXAMPLE.text, source: `${EXAMPLE.model} · ${TITLE}`, file: "start" };
  }

  figures() {
    return [this.lines.svg(TITLE)];
  }

  async data() {
    return (await this.result) ?? {};
  }
}
