/**
 * Write: a language model continues a text; attention, candidates and logit lens of any token;
 * heads can be switched off.
 */

import { get, lines } from "../api.js";
import { headName } from "../attention/head_grid.js";
import { Inside } from "../attention/inside.js";
import { TokenText } from "../attention/token_text.js";
import { button, form } from "../controls.js";
import { h, later, modified } from "../dom.js";
import { counted, percent, spelt } from "../numbers.js";
import { Pane } from "../panes/pane.js";
import { PanedView } from "../panes/paned_view.js";
import { Patching } from "../patching/patching.js";
import { Candidates } from "../write/candidates.js";
import { LogitLens } from "../write/logit_lens.js";
import { samplingOf, samplingWords, writeControls } from "../write/settings.js";
import { countOff, headNames, SilencedHeads } from "../write/silenced_heads.js";
import { comparison, continuationTitle, plain, remarksOf, summaryOf } from "../write/words.js";

const SAMPLING = ["temperature", "top_k", "top_p"];
const SLOW = 2000; // tokens from which the mean over all heads takes long

class WritePane extends Pane {
  static KIND = "write";
  static DOING = "Writing…";
  static EMPTY = "Type a text to continue.";
  static NONE =
    "There is no language model here: start the explorer with the folder of one, for instance GPT-2's.";
  static START = {
    model: "",
    text: "",
    chat: 0,
    max_new: 24,
    temperature: 0.7,
    top_k: 0,
    top_p: 1,
    seed: 1,
    inspect: 0,
    group: "self",
    layer: null,
    head: null,
    by: "pieces",
    at: null,
    scale: null,
    colouring: "map",
    off: {},
    without: {},
    next: {},
    patch: {},
  };

  constructor(view) {
    super(view);
    this.form = this.makeForm();
    this.text = new TokenText({ pick: (at) => this.pick(at), point: (at) => this.hover(at) });
    this.under = h("p", { class: "note" }, " "); // what is said of the token under the pointer
    this.remark = h("p", { class: "remark", hidden: true });
    this.before = h("div"); // the text that was written with all heads
    const written = [this.remark, this.before, this.text.root, this.under];
    this.written = h("div", { class: "written", hidden: true }, written);
    this.candidates = new Candidates();
    this.lens = new LogitLens();
    this.inside = this.makeInside();
    const { heads, map, lines } = this.inside;
    this.silenced = new SilencedHeads({
      grid: heads,
      write: (off) => {
        this.state.without = off;
        this.start(0);
      },
    });
    heads.switched = () => {
      this.view.remember();
      this.tellSwitches();
      this.without();
    };
    const outputs = h("div", { class: "two" }, this.candidates.root, this.lens.root);
    const { switches, effect } = this.silenced;
    this.right = h("div", { class: "right" }, map.root, heads.root, switches, effect);
    const left = h("div", { class: "left" }, lines.root, outputs);
    this.body = h("section", { class: "inside", hidden: true }, left, this.right);
    this.patching = new Patching({
      changed: (patch, push) => {
        this.state.patch = patch;
        this.view.remember(push);
      },
    });
    this.root = h("div", { class: "pane" }, this.form, this.patching.root, this.written, this.body);
  }

  makeForm() {
    this.input.setAttribute("aria-label", "The text to continue");
    this.input.classList.add("prompt");
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !modified(event)) return;
      event.preventDefault();
      this.start(0);
    });
    this.go.textContent = "Write";
    const reshape = later(() => this.tellCandidates(), 30);
    const set = (key, value) => this.set(key, value);
    Object.assign(this.controls, writeControls(this.state, set, reshape));
    const { max_new, temperature, top_k, top_p, seed, chat } = this.controls;
    const inspect = button("Inspect", () => this.start(1), {
      class: "read",
      title: "Inspect this text without continuing it",
    });
    const { choice, go, activity } = this;
    const row = [choice, max_new, temperature, top_k, top_p, seed, chat, go, inspect];
    return form(
      "ask",
      () => this.start(0),
      this.input,
      h("div", { class: "row" }, row, activity.root),
      this.about,
      this.chips,
    );
  }

  makeInside() {
    return new Inside({
      state: this.state,
      off: this.state.off,
      changed: () => {
        this.view.remember();
        this.arrange();
        this.tellSwitches();
        this.follow();
      },
      drew: () => this.view.compare(),
      pick: (at) => this.pick(at, false),
      expired: () => this.again(),
      tall: 290,
    });
  }

  async enter(given) {
    const opened = super.enter(given);
    await this.ready().catch(() => {}); // the pane shows the problem
    if (this.model) this.patching.enter(this.state.model, this.state.patch);
    return opened;
  }

  resume() {
    this.patching.resume();
  }

  // The heads stand above the map where their effects are what is looked at.
  arrange() {
    this.right.classList.toggle("heads-first", this.state.colouring === "effect");
  }

  // Write on, or only inspect the text.
  start(inspect) {
    this.state.inspect = inspect;
    this.run();
  }

  request() {
    const { model, text, chat, seed, without, inspect, max_new } = this.state;
    const request = {
      model,
      text,
      max_new: inspect ? 0 : max_new,
      ...samplingOf(this.state),
      seed,
      off: structuredClone(without),
    };
    if (chat && this.model?.chat) request.chat = true;
    return request;
  }

  pickModel(id) {
    for (const layer of Object.keys(this.state.off)) delete this.state.off[layer];
    this.state.without = {};
    this.suit(this.known[id]);
    super.pickModel(id);
    this.patching.enter(id, this.state.patch);
  }

  suggest() {
    super.suggest();
    this.controls.chat.hidden = !this.model?.chat;
  }

  // Models of generated tasks answer in a few symbols, the likeliest ones; models with a chat
  // template answer messages.
  initial(model = this.model) {
    const initial = { ...WritePane.START, chat: Number(Boolean(model?.chat)) };
    if (model?.max_new) Object.assign(initial, { max_new: model.max_new, temperature: 0 });
    return initial;
  }

  // Another model: settings that are as the model before starts become those of this one; other
  // settings stay.
  suit(model) {
    const before = this.initial();
    const after = this.initial(model);
    for (const key of ["chat", "max_new", "temperature"]) {
      if (this.setting(key) !== before[key] && !model.max_new) continue;
      delete this.state.next[key];
      this.state[key] = after[key];
      this.controls[key].set(after[key]);
    }
  }

  clear() {
    this.inside.heads.off = this.state.off; // an address may have brought another object
    this.partial = this.tokens = null;
    this.written.hidden = this.body.hidden = this.remark.hidden = true;
    this.silenced.hide();
    this.under.textContent = " ";
    this.before.replaceChildren();
    this.candidates.clear();
    this.lens.clear();
    this.inside.clear();
  }

  async compute(request, signal, say) {
    const off = countOff(request.off);
    const compared = off && request.max_new;
    const before = compared ? await this.withAllHeads(request, signal, say) : null;
    if (compared) say(`Writing without ${counted(off, "head")}…`);
    const result = (this.partial = empty(request, before));
    this.written.hidden = false;
    this.text.show([request.text], { from: 1, first: 0 });
    return this.stream(request, signal, say, result);
  }

  // The text that the model writes with all heads, to compare with.
  async withAllHeads(request, signal, say) {
    const whole = { ...request, off: {} };
    const key = JSON.stringify(whole);
    if (!this.results.has(key)) {
      say("Writing with all heads…");
      this.results.set(key, await this.stream(whole, signal, () => {}, null));
    }
    return this.results.get(key);
  }

  // Follow the events of one continuation; shown: the result that is on screen meanwhile, or null.
  async stream(request, signal, say, shown) {
    const result = shown ?? empty(request, null);
    for await (const event of lines("write", request, signal)) {
      if (event.waiting) say(`${event.waiting} before you…`);
      if (event.cut) result.cut = event.cut;
      if (event.prompt && shown) this.showPrompt(event.prompt);
      if (event.token) {
        result.steps.push(event.token);
        if (shown) this.text.append(event.token.text);
      }
      if (event.ended) result.ended = event.ended;
      if (event.progress) say(`Inspecting: block ${event.progress.join(" of ")}…`);
      if (event.look) result.look = event.look;
    }
    return result;
  }

  showPrompt({ names, special, spaces }) {
    const marked = { special: new Set(special), spaces: new Set(spaces) };
    this.text.show([...names], { first: 0, ...marked });
  }

  // After Stop: inspect what was written.
  async stopped() {
    const result = this.partial;
    if (!result || result.look) return;
    const work = async (signal, say) => {
      const written = result.steps.map(({ id }) => id);
      const request = { ...result.request, max_new: 0, written };
      for await (const event of lines("write", request, signal)) {
        if (event.progress) say(`Inspecting: block ${event.progress.join(" of ")}…`);
        if (event.look) result.look = event.look;
      }
      this.result = result;
      if (written.length) this.keepStopped(result);
      this.activity.say(`Stopped after ${counted(written.length, "token")}.`);
      this.show(result);
    };
    await this.activity.run("Inspecting what was written…", work, "stopped");
  }

  // The address leads to the text as it is, the form keeps its setting.
  keepStopped(result) {
    this.state.next.max_new = this.state.max_new;
    this.state.max_new = result.request.max_new = result.steps.length;
    this.key = JSON.stringify(this.request());
    this.results.set(this.key, result);
  }

  summary(result) {
    return summaryOf(result, this.model);
  }

  show(result) {
    const { look, steps } = result;
    const group = look?.groups[0];
    this.written.hidden = false;
    this.tokens = look?.text.names ?? [];
    this.spaces = new Set(look?.text.spaces);
    const count = this.tokens.length;
    const from = count - steps.length; // the number of the first written token
    // a token that was chosen while the text was being written
    if (Number.isInteger(this.early)) this.state.at = from + this.early;
    this.early = null;
    if (this.state.at === null || this.state.at >= count) this.state.at = count - 1;
    const said = remarksOf(result);
    this.remark.textContent = said.join(" ");
    this.remark.hidden = !said.length;
    this.before.replaceChildren(...comparison(result));
    const first = Math.floor(Math.max(0, this.state.at) / this.text.page) * this.text.page;
    const special = new Set(look?.text.special);
    this.text.show(this.tokens, { from, first, special, spaces: this.spaces });
    this.body.hidden = !group && !look?.lens;
    this.silenced.switches.hidden = !group;
    if (!look) return;
    const slow = count > SLOW && this.state.layer === null;
    if (slow) Object.assign(this.state, { layer: 0, head: 0 });
    this.inside.open(look).catch((trouble) => this.fail(trouble));
    this.tellSwitches();
    this.pick(this.state.at);
    this.without();
  }

  // The chosen head has changed: shade the text by its weights.
  follow() {
    if (this.tokens && this.inside.look) this.shade();
  }

  async shade() {
    const { at } = this.state;
    const asked = (this.shading = {});
    if (at === null || !this.inside.group) return;
    await this.trying(async () => {
      const row = await this.inside.row(at);
      if (this.shading === asked) this.text.shade(row);
    });
  }

  // Request numbers of the inspection; the server may no longer hold it.
  async trying(work) {
    try {
      await work();
    } catch (trouble) {
      if (trouble.status === 404) this.again();
      else this.fail(trouble);
    }
  }

  // Choose a token; while the text is being written, its candidates are shown, and the rest as soon
  // as it is inspected.
  pick(at, told = true) {
    if (!this.tokens) {
      this.pickEarly(at);
      return;
    }
    this.state.at = at;
    this.text.choose(at, true);
    if (told) this.inside.choose(at);
    this.view.remember();
    this.shade();
    this.tellCandidates();
    this.tellLens();
  }

  pickEarly(at) {
    // a prompt may be one piece until it is inspected
    const step = this.partial?.steps[at - this.text.from];
    if (!step) return;
    this.early = at - this.text.from;
    this.text.choose(at);
    this.body.hidden = true;
    const all = step.candidates.map(([piece, share]) => `${spelt(piece)} ${percent(share)}`);
    const own = `${spelt(step.piece)}: ${percent(step.share)}`;
    this.under.textContent = `${own}. Candidates in its place: ${all.join(", ")}`;
  }

  // Describe the token under the pointer: its probability, and the attention weight that the chosen
  // token gives it.
  hover(at) {
    if (!this.tokens) return;
    const steps = this.result?.steps ?? [];
    const step = steps[at - (this.tokens.length - steps.length)];
    const share = this.text.signed ? undefined : this.text.shares?.[at];
    const said = [];
    if (at !== null && step) {
      said.push(`${spelt(step.piece)} had probability ${percent(step.share)}`);
    }
    if (at !== null && share !== undefined) {
      said.push(`attention from ${spelt(this.tokens[this.state.at])}: ${percent(share)}`);
    }
    this.under.textContent = said.join("; ") || " ";
  }

  async tellCandidates() {
    const { at } = this.state;
    const { look } = this.inside;
    if (at === null || !look?.lens || !this.tokens) return;
    if (at === 0) {
      this.candidates.showFirst();
      return;
    }
    const settings = Object.fromEntries(SAMPLING.map((key) => [key, this.setting(key)]));
    const sampling = samplingOf(settings);
    await this.trying(async () => {
      const { signal } = this.inside.controller;
      const found = await this.candidates.request(look, at, sampling, signal);
      if (this.state.at !== at || this.inside.look !== look) return;
      const { request, steps } = this.result ?? this.partial;
      const changed = steps.length && SAMPLING.some((key) => key in this.state.next);
      this.candidates.show(found, {
        own: this.tokens[at],
        by: `by the model${this.lacking()}`,
        sampling: samplingWords(sampling, "greedy"),
        drawn: changed ? ` (the text was drawn with ${samplingWords(request)})` : "",
      });
    });
  }

  async tellLens() {
    const { at } = this.state;
    const { look } = this.inside;
    if (at === null || !look?.lens || !this.tokens) return;
    await this.trying(async () => {
      const { signal } = this.inside.controller;
      const found = await get("looks/lens", { look: look.id, at }, signal);
      if (this.state.at !== at || this.inside.look !== look) return;
      this.lens.show(found, this.tokens[at], this.lacking());
    });
  }

  // The heads that the text on screen was written or inspected without.
  lacking() {
    const { off } = (this.result ?? this.partial).request;
    return countOff(off) ? `, without ${headNames(off)}` : "";
  }

  tellSwitches() {
    if (this.inside.group) this.silenced.tell(this.state.off, this.state.without);
  }

  // What switching heads off changes for the text on screen.
  async without() {
    const { look, controller } = this.inside;
    const current = () => this.inside.look === look;
    await this.silenced.measure(look, this.state.off, this.spaces, controller?.signal, current);
  }

  caption() {
    const { request, steps } = this.result ?? { steps: [] };
    const written = plain(steps);
    const source = [this.source()];
    if (countOff(request?.off ?? {})) source[0] += ` without ${headNames(request.off)}`;
    if (request?.chat) source.push("as a chat");
    if (this.inside.group) source.push(this.inside.title());
    if (written) {
      const seed = request.temperature ? `, seed ${request.seed}` : "";
      source.push(`${samplingWords(request)}${seed}`);
    }
    const { model } = this.state;
    return {
      title: request ? continuationTitle(request.text, written) : "",
      source: source.join(" · "),
      file: this.inside.group ? `${model}-${headName(this.state)}` : model,
    };
  }

  figures() {
    if (this.body.hidden) return [];
    return [
      ...this.inside.figures(),
      this.candidates.found && this.state.at > 0 ? this.candidates.svg() : null,
      this.lens.found ? this.lens.svg() : null,
      this.silenced.effects ? this.silenced.svg() : null,
      ...this.patching.figures(),
    ];
  }

  async data() {
    return {
      ...this.state,
      tokens: this.tokens ?? [],
      steps: this.result?.steps ?? [],
      cut: this.result?.cut ?? null,
      before: this.result?.before?.steps ?? null,
      candidates: this.candidates.found,
      lens: this.lens.found,
      without: this.silenced.effects,
      patching: this.patching.data(),
      attention: await this.inside.data(),
    };
  }
}

// A continuation before its first token; before: the same with all heads.
const empty = (request, before) => {
  return { request, steps: [], look: null, cut: null, ended: null, before };
};

export class Write extends PanedView {
  constructor(frame) {
    super(
      frame,
      "write",
      "Write",
      "A language model draws one token after another. Choose one to see what it attends to, and what else was likely in its place.",
      WritePane,
    );
  }
}
