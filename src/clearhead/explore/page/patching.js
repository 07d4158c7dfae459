// Activation patching of two prompts: which layer and token carry what makes the answers differ, as one heat map.

import { Activity } from "./activity.js";
import { lines, post } from "./api.js";
import { choose, h, later, number, spelt } from "./dom.js";
import { HeatMap, whole } from "./map.js";

// Pairs that work with the shipped model: clean prompt, corrupted prompt, the answer and the other answer.
const EXAMPLES = [
  ["The children in the garden", "The child in the garden", "are", "is"],
  ["The woman is brushing", "The man is brushing", "her", "his"],
  ["The girl was tired because", "The boy was tired because", "she", "he"],
];
const WHAT = { residual: "the residual stream after each block", attention: "the output of each attention", mlp: "the output of each MLP", heads: "the output of each head, at all tokens" };
const FIELDS = { clean: "clean prompt", corrupted: "corrupted prompt", answer: "answer to the clean prompt", other: "answer to the corrupted one" };
const HALF = 0.5; // of the effect: where it is said to be

const example = ([clean, corrupted, answer, other]) => ({ clean, corrupted, answer, other, what: "residual" });

// The cells by row and column, in words.
class EffectMap extends HeatMap {
  constructor() { super({ signed: true, fixed: 1, tall: 260, what: "share of the clean answer that comes back" }); }

  tell(at) {
    const value = at && this.value(...at);
    this.note.textContent = value === null ? " " : `${this.source.rows[at[0]]}, ${this.source.keys[at[1]]}: ${number(value)} of the clean answer comes back`;
  }
}

export class Patching {
  // changed: called with the state for the address; its second argument is true if a result was asked for
  constructor({ changed }) {
    Object.assign(this, { changed, model: "", asked: {}, found: null });
    this.activity = new Activity();
    this.inputs = Object.fromEntries(Object.entries(FIELDS).map(([key, label]) => [key, h("input", { type: "text", spellcheck: "false", autocomplete: "off", "aria-label": label, maxlength: key === "clean" || key === "corrupted" ? 2000 : 60, oninput: () => this.count() })]));
    const field = (key) => h("label", { class: `field ${key}` }, h("span", {}, FIELDS[key]), this.inputs[key]);
    this.what = choose("exchanged", Object.entries(WHAT), "residual", () => this.run(), { name: "what" });
    this.go = h("button", { type: "submit", class: "go" }, "Patch");
    this.tokens = h("div", { class: "tokens", role: "status" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Examples of prompts" }, EXAMPLES.map((one) => h("button", { type: "button", class: "chip", onclick: () => { this.fill(example(one)); this.run(); } }, `${one[0]} / ${one[1].split(" ")[1]}`)));
    this.form = h("form", { class: "patchform", onsubmit: (event) => { event.preventDefault(); this.run(); } }, field("clean"), field("corrupted"), field("answer"), field("other"), h("div", { class: "row" }, this.what, this.go, this.activity.root), this.tokens, this.chips);
    this.map = new EffectMap();
    this.verdict = h("p", { class: "verdict" });
    this.result = h("div", { "aria-live": "polite" }); // the map and what it shows, once there is one
    this.root = h("details", { class: "patching", ontoggle: () => this.toggled() }, h("summary", {}, "Patching: which layer and token carry the answer?"),
      h("p", { class: "note" }, "Two prompts with the same number of tokens and different answers. The model reads the corrupted one, one vector at a time is replaced by that of the clean one, and the map shows how much of the clean answer comes back: 0 none, 1 all of it."),
      h("div", { class: "patchbody" }, this.form, this.result));
    this.count = later(() => this.compare(), 150);
  }

  // Open what an address asks for: { open, clean, corrupted, answer, other, what }.
  enter(model, patch) {
    if (model !== this.model) this.clear();
    this.model = model;
    if (!patch.open) { this.root.open = false; return; }
    const given = typeof patch.clean === "string" ? { ...example(EXAMPLES[0]), other: "", answer: "", ...patch } : example(EXAMPLES[0]);
    const same = this.root.open && JSON.stringify(this.request(given)) === this.key;
    this.root.open = true;
    if (same) return;
    this.fill(given);
    this.run(false);
  }

  fill(given) {
    for (const [key, input] of Object.entries(this.inputs)) input.value = typeof given[key] === "string" ? given[key] : "";
    this.what.set(given.what in WHAT ? given.what : "residual");
    this.compare();
  }

  clear() {
    this.activity.cancel();
    Object.assign(this, { found: null, key: null });
    this.map.clear();
    this.result.replaceChildren();
  }

  get given() { return { ...Object.fromEntries(Object.entries(this.inputs).map(([key, input]) => [key, input.value])), what: this.what.querySelector("select").value }; }
  request({ clean, corrupted, answer, other, what } = this.given) { return { model: this.model, clean, corrupted, answers: [answer, other].filter((one, i) => one?.trim() && (i === 0 || answer?.trim())).map((one) => one.trim()), what }; }

  // The user opened or closed it.
  toggled() {
    if (!this.root.open) { this.activity.cancel(); return this.changed({}, false); }
    if (this.found || this.activity.state === "working" || !this.model) return;
    if (!this.inputs.clean.value) this.fill(example(EXAMPLES[0]));
    this.run(false);
  }

  // Show the tokens of both prompts below one another, and what keeps them from being exchanged.
  async compare() {
    const { clean, corrupted } = this.given, mine = (this.asked = {}), { model } = this;
    if (!model) return;
    let tokens;
    try { ({ tokens } = await post("tokens", { model, texts: [clean, corrupted] })); } catch (trouble) { if (this.asked === mine) this.tokens.textContent = trouble.message; return; }
    if (this.asked !== mine) return;
    const [one, two] = tokens, long = Math.max(one.length, two.length), differ = (i) => one[i] !== two[i];
    const row = (name, list) => h("tr", {}, h("th", { scope: "row" }, name), Array.from({ length: long }, (_, i) => h("td", { class: differ(i) ? "differs" : "" }, list[i] === undefined ? "" : h("code", {}, spelt(list[i])))), h("td", { class: "count" }, `${list.length} token${list.length === 1 ? "" : "s"}`));
    this.tokens.replaceChildren(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tokens of both prompts" }, h("table", {}, h("tbody", {}, row("clean", one), row("corrupted", two)))), h("p", { class: "note" }, advice(one, two, clean, corrupted)));
    this.go.disabled = one.length !== two.length || !one.length;
  }

  async run(push = true) {
    const request = this.request(), { model } = this;
    this.clear();
    this.changed({ open: 1, ...this.given }, push);
    this.key = JSON.stringify(request);
    await this.activity.run("Exchanging…", async (signal, say) => {
      let found = null;
      for await (const event of lines("patching", request, signal)) {
        if (event.waiting) say(`${event.waiting} before you…`);
        if (event.progress) say(`Exchanging: ${event.progress[0]} of ${event.progress[1]}…`);
        if (event.patching) found = event.patching;
      }
      this.show({ ...found, model });
      say("");
    });
  }

  show(found) {
    this.found = found;
    const rows = Array.from({ length: found.layers }, (_, i) => `block ${i}`), heads = found.what === "heads", keys = found.columns.map((name) => (heads ? `head ${name}` : spelt(name)));
    this.verdict.textContent = `${measured(found)} ${where(found)}`;
    this.result.replaceChildren(this.map.root, this.verdict);
    this.map.call(`Exchanged: ${WHAT[found.what]}`, ["", ""]);
    this.map.show(whole(rows, keys, found.effects, 1));
  }

  svg() { return this.root.open && this.found ? this.map.svg() : null; }
  data() { return this.root.open && this.found ? { given: this.given, ...this.found } : null; }
}

// What is measured, and how much the prompts differ in it.
function measured({ answer, clean, corrupted }) {
  const [one, two] = answer.split(" against ").map((name) => `“${name.trim()}”`);
  return two ? `After the clean prompt ${one} is ${times(clean)} than ${two}, after the corrupted one it is ${times(corrupted)}.` : `The log-probability of ${one} is ${number(clean)} after the clean prompt and ${number(corrupted)} after the corrupted one.`;
}

const times = (x) => `${Number(Math.exp(Math.abs(x)).toPrecision(2)).toLocaleString("en")} times ${x < 0 ? "less" : "more"} likely`;

// Where most of the effect is, from the first block to the last.
function where({ what, effects, columns }) {
  if (what === "heads") {
    const all = effects.flatMap((row, layer) => row.map((x, head) => [x, layer, head])).sort((a, b) => b[0] - a[0]), [x, layer, head] = all[0];
    return `The head that brings back most is head ${head} of block ${layer}, with ${number(x)}.`;
  }
  const peaks = effects.map((row) => row.reduce((best, x, i) => (x > row[best] ? i : best), 0)), name = (i) => `“${columns[i].trim() || "␣"}”${i === columns.length - 1 ? ", the last token" : ""}`;
  if (!effects.some((row) => Math.max(...row) > HALF)) {
    const best = effects.flatMap((row, layer) => row.map((x, at) => [x, layer, at])).sort((a, b) => b[0] - a[0])[0];
    return `No single place brings back half of the answer; the most, ${number(best[0])}, comes from ${name(best[2])} in block ${best[1]}.`;
  }
  const spans = [];
  peaks.forEach((at, layer) => { if (spans.at(-1)?.at === at) spans.at(-1).last = layer; else spans.push({ at, first: layer, last: layer }); });
  const said = spans.map(({ at, first, last }) => `${first === last ? `in block ${first}` : `in blocks ${first} to ${last}`} at ${name(at)}`);
  return `Most of the difference is carried ${said.join(", then ")}.`;
}

// What to change so that the prompts can be exchanged; or that they can.
function advice(one, two, clean, corrupted) {
  if (!clean.trim() || !corrupted.trim()) return "Type both prompts.";
  if (one.length === two.length) {
    const differing = one.filter((token, i) => token !== two[i]).length;
    return differing ? `The prompts have the same number of tokens and differ in ${differing}.` : "The prompts are the same: change a word of one.";
  }
  const longer = one.length > two.length ? one : two, split = longer.findIndex((token, i) => i > 0 && /^[^\s]/.test(token) && /^[\p{L}\p{N}]/u.test(token)), word = split > 0 ? pieces(longer, split) : "";
  return `The clean prompt has ${one.length} tokens and the corrupted one ${two.length}: they need the same number.${word ? ` ${word}; a commoner word may be one token.` : " Add or remove a word."}`;
}

// The word that the token at `i` is a later part of.
function pieces(tokens, i) {
  let first = i, last = i;
  while (first > 0 && !/^\s/.test(tokens[first])) first--;
  while (last + 1 < tokens.length && /^[\p{L}\p{N}]/u.test(tokens[last + 1])) last++;
  const some = tokens.slice(first, last + 1);
  return `“${some.join("").trim()}” is ${some.length} tokens`;
}
