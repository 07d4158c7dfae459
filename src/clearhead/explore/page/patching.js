/**
 * Activation patching of two prompts: which layer and token carry what makes the answers differ, as
 * one heat map.
 */

import { Activity } from "./activity.js";
import { lines, post } from "./api.js";
import { choose, h, later, number, spelt } from "./dom.js";
import { notes, part } from "./figure.js";
import { HeatMap, largest, whole } from "./map.js";
import { agreement, faint, obstacle, verdict } from "./patching_words.js";

// Pairs that work with the shipped model: clean prompt, corrupted prompt, the answer and the other
// answer.
const EXAMPLES = [
  ["The children in the garden", "The child in the garden", "are", "is"],
  ["The woman is brushing", "The man is brushing", "her", "his"],
  ["The girl was tired because", "The boy was tired because", "she", "he"],
];
// For models of which none of these fits, as each of their tokens is a character: words of the same
// length.
const LETTERS = [["The man is here and", "The dog is here and", "", ""]];
const WHAT = {
  residual: "the residual stream after each block",
  attention: "the output of each attention",
  mlp: "the output of each MLP",
  heads: "the output of each head, at all tokens",
};
const FIELDS = {
  clean: "clean prompt",
  corrupted: "corrupted prompt",
  answer: "answer to the clean prompt",
  other: "answer to the corrupted one",
};

const example = ([clean, corrupted, answer, other]) => ({
  clean,
  corrupted,
  answer,
  other,
  what: "residual",
});

// The cells by row and column, in words.
class EffectMap extends HeatMap {
  constructor() {
    super({
      signed: true,
      fixed: 1,
      tall: 260,
      what: "share of the clean answer that comes back (orange: below 0)",
    });
  }

  tellScale() {
    super.tellScale();
    this.legend.append(" share");
  }

  tell(at) {
    const value = at && this.value(...at);
    this.note.textContent = value === null
      ? " "
      : `${this.source.rows[at[0]]}, ${this.source.keys[at[1]]}: ${
        number(value)
      } of the clean answer comes back`;
  }
}

export class Patching {
  // changed: called with the state for the address; its second argument is true if a result was
  // asked for
  constructor({ changed }) {
    Object.assign(this, { changed, model: "", asked: {}, found: null });
    this.activity = new Activity();
    this.inputs = Object.fromEntries(
      Object.entries(FIELDS).map(([key, label]) => [
        key,
        h("input", {
          type: "text",
          spellcheck: "false",
          autocomplete: "off",
          "aria-label": label,
          maxlength: key === "clean" || key === "corrupted" ? 2000 : 60,
          oninput: () => this.edited(),
        }),
      ]),
    );
    const field = (key) =>
      h("label", { class: `field ${key}` }, h("span", {}, FIELDS[key]), this.inputs[key]);
    this.what = choose("exchanged", Object.entries(WHAT), "residual", () => this.run(), {
      name: "what",
    });
    this.go = h("button", { type: "submit", class: "go" }, "Patch");
    this.tokens = h("div", { class: "tokens", role: "status" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Examples of prompts" });
    this.form = h(
      "form",
      {
        class: "patchform",
        onsubmit: (event) => {
          event.preventDefault();
          this.run();
        },
      },
      field("clean"),
      field("corrupted"),
      field("answer"),
      field("other"),
      h("div", { class: "row" }, this.what, this.go, this.activity.root),
      this.activity.problem,
      this.tokens,
      this.chips,
    );
    this.map = new EffectMap();
    this.verdict = h("p", { class: "verdict" });
    // the map and what it shows, once there is one
    this.result = h("div", { "aria-live": "polite" });
    this.root = h(
      "details",
      { class: "patching", ontoggle: () => this.toggled() },
      h("summary", {}, "Patching: which layer and token carry the answer?"),
      h(
        "p",
        { class: "note" },
        "Two prompts with the same number of tokens and different answers. The model reads the corrupted one, one vector at a time is replaced by that of the clean one, and the map shows how much of the clean answer comes back: 0 none, 1 all of it; below 0 (orange) the answer moves further away.",
      ),
      h("div", { class: "patchbody" }, this.form, this.result),
    );
    this.count = later(() => this.compare(), 150);
  }

  // Open what an address asks for: { open, clean, corrupted, answer, other, what }.
  enter(model, patch) {
    if (model !== this.model) this.clear();
    this.model = model;
    if (!patch.open) {
      this.root.open = false;
      return;
    }
    this.root.open = true;
    const first = this.suggest();
    if (typeof patch.clean === "string") this.ask({ ...example(["", "", "", ""]), ...patch });
    else {
      first.then((usual) => {
        if (this.model === model && this.root.open) this.ask(usual);
      });
    }
  }

  // Exchange what is given, unless it is on screen.
  ask(given) {
    const same = JSON.stringify(this.request(given)) === this.key;
    if (same) return;
    this.fill(given);
    this.run(false);
  }

  // Offer the examples whose prompts have the same number of tokens for this model, without answers
  // that are more than one token; returns the first, which is empty if none fits.
  async suggest() {
    const { model } = this;
    const suited = async ([clean, corrupted, ...answers]) => {
      try {
        const {
          tokens: [one, two, ...others],
        } = await post("tokens", {
          model,
          texts: [clean, corrupted, ...answers.filter(Boolean).map((word) => ` ${word}`)],
        });
        // a token that begins every text does not count
        const single = others.every((list) => list.length - Number(list[0] === one[0]) === 1);
        return one.length === two.length
          ? [clean, corrupted, ...(single ? answers : ["", ""])]
          : null;
      } catch (trouble) {
        return trouble.offline ? [clean, corrupted, ...answers] : null;
      } // a character that it does not know
    };
    if (this.suited?.model !== model) {
      const some = async (list) => (await Promise.all(list.map(suited))).filter(Boolean);
      let found = await some(EXAMPLES);
      if (!found.length) found = await some(LETTERS);
      if (model !== this.model) return example(EXAMPLES[0]);
      this.suited = { model, found };
      this.chips.replaceChildren(
        ...found.map((one) =>
          h(
            "button",
            {
              type: "button",
              class: "chip",
              onclick: () => {
                this.fill(example(one));
                this.run();
              },
            },
            `${one[0]} / ${one[1].split(" ")[1]}`,
          )
        ),
      );
    }
    return example(this.suited.found[0] ?? ["", "", "", ""]);
  }

  fill(given) {
    for (const [key, input] of Object.entries(this.inputs)) {
      input.value = typeof given[key] === "string" ? given[key] : "";
    }
    this.what.set(given.what in WHAT ? given.what : "residual");
    this.hint();
    this.compare();
  }

  clear() {
    this.activity.cancel();
    Object.assign(this, { found: null, key: null });
    this.activity.say("");
    this.map.clear();
    this.result.replaceChildren();
  }

  get given() {
    return {
      ...Object.fromEntries(Object.entries(this.inputs).map(([key, input]) => [key, input.value])),
      what: this.what.querySelector("select").value,
    };
  }
  request({ clean, corrupted, answer, other, what } = this.given) {
    return {
      model: this.model,
      clean,
      corrupted,
      answers: [answer, other].map((one) => one?.trim()).filter(Boolean),
      what,
    };
  }

  // The user opened or closed it.
  toggled() {
    if (!this.root.open) {
      this.activity.cancel();
      return this.changed({}, false);
    }
    if (this.found || this.activity.state === "working" || !this.model) return;
    const { model } = this;
    this.suggest().then((first) => {
      if (
        this.model !== model ||
        !this.root.open ||
        this.found ||
        this.activity.state === "working"
      ) {
        return;
      }
      if (!this.inputs.clean.value) this.fill(first);
      this.run(false);
    });
  }

  // A prompt or an answer was changed: a problem with the earlier ones no longer applies.
  edited() {
    if (this.activity.state === "failed") this.activity.cancel();
    this.hint();
    this.count();
  }

  // What an empty answer means.
  hint() {
    const { answer, other } = this.inputs;
    answer.placeholder = "empty: the likeliest token";
    other.placeholder = answer.value.trim()
      ? "empty: one answer alone"
      : "empty: the likeliest token";
  }

  // The server answers again: repeat what failed.
  resume() {
    if (!this.root.open) return;
    if (this.activity.state === "failed" && !this.repeated) {
      this.repeated = true;
      this.run(false);
    }
    if (this.unread) this.compare();
  }

  // Show the tokens of both prompts below one another, and what keeps them from being exchanged.
  async compare() {
    const { given, model } = this;
    const mine = (this.asked = {});
    if (!model) return;
    let tokens;
    try {
      ({ tokens } = await post("tokens", { model, texts: [given.clean, given.corrupted] }));
    } catch (trouble) {
      if (this.asked === mine) {
        this.unread = true;
        this.tokens.textContent = trouble.message;
      }
      return;
    }
    if (this.asked !== mine) return;
    this.unread = false; // whether the tokens on screen could not be read
    const [one, two] = tokens;
    const long = Math.max(one.length, two.length);
    const differ = (i) => one[i] !== two[i];
    const why = obstacle(tokens, given);
    const row = (name, list) =>
      h(
        "tr",
        {},
        h(
          "th",
          { scope: "row" },
          name,
          " ",
          h("span", { class: "count" }, `(${list.length} token${list.length === 1 ? "" : "s"})`),
        ),
        Array.from({ length: long }, (_, i) =>
          h(
            "td",
            { class: differ(i) ? "differs" : "" },
            list[i] === undefined ? "" : h("code", {}, spelt(list[i])),
          )),
      );
    this.tokens.replaceChildren(
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tokens of both prompts" },
        h("table", {}, h("tbody", {}, row("clean", one), row("corrupted", two))),
      ),
      h("p", { class: "note" }, why || agreement(tokens, given)),
    );
    this.go.disabled = why !== "";
  }

  async run(push = true) {
    const request = this.request();
    const { given, model } = this;
    this.clear();
    this.changed({ open: 1, ...given }, push);
    this.key = JSON.stringify(request);
    await this.activity.run("Exchanging…", async (signal, say) => {
      const { tokens } = await post(
        "tokens",
        { model, texts: [request.clean, request.corrupted] },
        signal,
      );
      if (obstacle(tokens, given)) return say(""); // it stands below the prompts
      let found = null;
      for await (const event of lines("patching", request, signal)) {
        if (event.waiting) say(`${event.waiting} before you…`);
        if (event.progress) say(`Exchanging: ${event.progress[0]} of ${event.progress[1]}…`);
        if (event.patching) found = event.patching;
      }
      this.repeated = false;
      this.show({ ...found, model });
      say("");
    });
  }

  show(found) {
    this.found = found;
    this.verdict.textContent = verdict(found);
    this.verdict.classList.toggle("remark", faint(found));
    this.result.replaceChildren(...(faint(found) ? [] : [this.map.root]), this.verdict);
    if (faint(found)) return;
    const rows = Array.from({ length: found.layers }, (_, i) => `block ${i}`);
    const heads = found.what === "heads";
    const keys = found.columns.map((name) => (heads ? `head ${name}` : spelt(name)));
    this.map.call(`Exchanged: ${WHAT[found.what]}`, ["", ""]);
    this.map.fixed = Math.max(1, largest(found.effects)); // a share may be more than all
    this.map.show(whole(rows, keys, found.effects, 1));
  }

  figures() {
    if (!this.root.open || !this.found) return [];
    const { tokens, other_tokens: others } = this.found;
    const prompt = (list) => `“${list.join("").trim()}”`;
    return [
      part("Patching"),
      notes(
        `Clean prompt: ${prompt(tokens)}. Corrupted prompt: ${prompt(others)}. ${
          verdict(this.found)
        }`,
      ),
      faint(this.found) ? null : this.map.svg(),
    ];
  }

  data() {
    return this.root.open && this.found ? { given: this.given, ...this.found } : null;
  }
}
