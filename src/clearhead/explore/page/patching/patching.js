/**
 * Activation patching of two prompts: which layer and token carry what makes the answers differ, as
 * one heat map.
 */

import { Activity } from "../activity.js";
import { lines, post } from "../api.js";
import { HeatMap, largest, whole } from "../attention/heat_map.js";
import { button, choose, form } from "../controls.js";
import { h, later } from "../dom.js";
import { notes, part } from "../figures/sheet.js";
import { counted, number, spelt } from "../numbers.js";
import { agreement, faint, obstacle, verdict } from "./words.js";

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
const NONE = ["", "", "", ""];
const LONGEST = { clean: 2000, corrupted: 2000, answer: 60, other: 60 }; // characters

const about =
  "Two prompts with the same number of tokens and different answers. The model reads the corrupted one, one vector at a time is replaced by that of the clean one, and the map shows how much of the clean answer comes back: 0 none, 1 all of it; below 0 (orange) the answer moves further away.";

const asState = ([clean, corrupted, answer, other]) => {
  return { clean, corrupted, answer, other, what: "residual" };
};

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
    if (value === null) {
      this.note.textContent = " ";
      return;
    }
    const [row, key] = at;
    const place = `${this.source.rows[row]}, ${this.source.keys[key]}`;
    this.note.textContent = `${place}: ${number(value)} of the clean answer comes back`;
  }
}

export class Patching {
  // changed: called with the state for the address; its second argument is true if a result was
  // asked for
  constructor({ changed }) {
    Object.assign(this, { changed, model: "", asked: {}, found: null });
    this.activity = new Activity();
    this.map = new EffectMap();
    this.verdict = h("p", { class: "verdict" });
    // the map and what it shows, once there is one
    this.result = h("div", { "aria-live": "polite" });
    this.form = this.makeForm();
    this.root = h(
      "details",
      { class: "patching", ontoggle: () => this.toggled() },
      h("summary", {}, "Patching: which layer and token carry the answer?"),
      h("p", { class: "note" }, about),
      h("div", { class: "patchbody" }, this.form, this.result),
    );
    this.count = later(() => this.compare(), 150);
  }

  makeForm() {
    this.inputs = {};
    const fields = Object.entries(FIELDS).map(([key, label]) => {
      this.inputs[key] = h("input", {
        type: "text",
        spellcheck: "false",
        autocomplete: "off",
        "aria-label": label,
        maxlength: LONGEST[key],
        oninput: () => this.edited(),
      });
      return h("label", { class: `field ${key}` }, h("span", {}, label), this.inputs[key]);
    });
    const run = () => this.run();
    this.what = choose("exchanged", Object.entries(WHAT), "residual", run, { name: "what" });
    this.go = h("button", { type: "submit", class: "go" }, "Patch");
    this.tokens = h("div", { class: "tokens", role: "status" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Examples of prompts" });
    return form(
      "patchform",
      run,
      ...fields,
      h("div", { class: "row" }, this.what, this.go, this.activity.root),
      this.activity.problem,
      this.tokens,
      this.chips,
    );
  }

  // Open what an address asks for: { open, clean, corrupted, answer, other, what }.
  enter(model, patch) {
    if (model !== this.model) this.clear();
    this.model = model;
    this.root.open = Boolean(patch.open);
    if (!patch.open) return;
    const first = this.suggest();
    if (typeof patch.clean === "string") {
      this.ask({ ...asState(NONE), ...patch });
      return;
    }
    first.then((usual) => {
      if (this.model === model && this.root.open) this.ask(usual);
    });
  }

  // Exchange what is given, unless it is on screen.
  ask(given) {
    const same = JSON.stringify(this.request(given)) === this.key;
    if (same) return;
    this.fill(given);
    this.run(false);
  }

  // Offer the examples whose prompts have the same number of tokens for this model; returns the
  // first, which is empty if none fits.
  async suggest() {
    const { model } = this;
    if (this.suited?.model !== model) {
      const suitable = async (list) => {
        const found = await Promise.all(list.map((example) => suited(model, example)));
        return found.filter(Boolean);
      };
      let found = await suitable(EXAMPLES);
      if (!found.length) found = await suitable(LETTERS);
      if (model !== this.model) return asState(EXAMPLES[0]);
      this.suited = { model, found };
      this.chips.replaceChildren(...found.map((example) => this.chip(example)));
    }
    return asState(this.suited.found[0] ?? NONE);
  }

  chip(example) {
    const [clean, corrupted] = example;
    const take = () => {
      this.fill(asState(example));
      this.run();
    };
    return button(`${clean} / ${corrupted.split(" ")[1]}`, take, { class: "chip" });
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
    const { clean, corrupted, answer, other } = this.inputs;
    return {
      clean: clean.value,
      corrupted: corrupted.value,
      answer: answer.value,
      other: other.value,
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
  async toggled() {
    if (!this.root.open) {
      this.activity.cancel();
      return this.changed({}, false);
    }
    const { model } = this;
    const busy = () => this.found || this.activity.state === "working";
    if (busy() || !model) return;
    const first = await this.suggest();
    if (this.model !== model || !this.root.open || busy()) return;
    if (!this.inputs.clean.value) this.fill(first);
    this.run(false);
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
      if (this.asked !== mine) return;
      this.unread = true; // the tokens on screen could not be read
      this.tokens.textContent = trouble.message;
      return;
    }
    if (this.asked !== mine) return;
    this.unread = false;
    const why = obstacle(tokens, given);
    const scroll = { class: "scroll", tabindex: 0, role: "region" };
    this.tokens.replaceChildren(
      h("div", { ...scroll, "aria-label": "Tokens of both prompts" }, tokenTable(tokens)),
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
      const texts = [request.clean, request.corrupted];
      const { tokens } = await post("tokens", { model, texts }, signal);
      if (obstacle(tokens, given)) return say(""); // it stands below the prompts
      let found = null;
      for await (const event of lines("patching", request, signal)) {
        if (event.waiting) say(`${event.waiting} before you…`);
        if (event.progress) say(`Exchanging: ${event.progress.join(" of ")}…`);
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
    const [clean, corrupted] = [tokens, others].map((list) => `“${list.join("").trim()}”`);
    const prompts = `Clean prompt: ${clean}. Corrupted prompt: ${corrupted}.`;
    const map = faint(this.found) ? null : this.map.svg();
    return [part("Patching"), notes(`${prompts} ${verdict(this.found)}`), map];
  }

  data() {
    return this.root.open && this.found ? { given: this.given, ...this.found } : null;
  }
}

// An example if its prompts have the same number of tokens for this model, without answers that
// are more than one token; null otherwise.
async function suited(model, [clean, corrupted, ...answers]) {
  const words = answers.filter(Boolean).map((word) => ` ${word}`);
  let tokens;
  try {
    ({ tokens } = await post("tokens", { model, texts: [clean, corrupted, ...words] }));
  } catch (trouble) {
    // any other problem is a character that the model does not know
    return trouble.offline ? [clean, corrupted, ...answers] : null;
  }
  const [one, two, ...others] = tokens;
  if (one.length !== two.length) return null;
  // a token that begins every text does not count
  const single = others.every((list) => list.length - Number(list[0] === one[0]) === 1);
  return [clean, corrupted, ...(single ? answers : ["", ""])];
}

// The tokens of both prompts below one another; those that differ are marked.
function tokenTable([one, two]) {
  const long = Math.max(one.length, two.length);
  const row = (name, tokens) => {
    const count = h("span", { class: "count" }, `(${counted(tokens.length, "token")})`);
    const cells = Array.from({ length: long }, (_, i) => {
      const token = tokens[i] === undefined ? "" : h("code", {}, spelt(tokens[i]));
      return h("td", { class: one[i] === two[i] ? "" : "differs" }, token);
    });
    return h("tr", {}, h("th", { scope: "row" }, name, " ", count), cells);
  };
  return h("table", {}, h("tbody", {}, row("clean", one), row("corrupted", two)));
}
