/**
 * Write: a language model continues a text; attention, candidates and logit lens of any token;
 * heads can be switched off.
 */

import { get, lines, post } from "../api.js";
import { h, later, number, percent, slide, spelt, visible } from "../dom.js";
import { Inside } from "../inside.js";
import { Pane, PanedView } from "../pane.js";
import { Patching } from "../patching.js";
import { barsFigure, tableFigure, textFigure } from "../small_figures.js";
import { TokenText } from "../tokens.js";

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
    this.input.setAttribute("aria-label", "The text to continue");
    this.input.classList.add("prompt");
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.start(0);
      }
    });
    this.go.textContent = "Write";
    const reshape = later(() => this.tellCandidates(), 30);
    const set = (key) => (x) => {
      this.set(key, x);
      reshape();
    };
    const seed = h("input", {
      type: "number",
      min: 0,
      max: 2147483647,
      value: this.state.seed,
      onchange: () => {
        seed.value = Math.min(2147483647, Math.max(0, Math.floor(Number(seed.value) || 0)));
        this.set("seed", Number(seed.value));
      },
    });
    const chat = h("input", {
      type: "checkbox",
      onchange: () => this.set("chat", Number(chat.checked)),
    });
    this.asChat = h(
      "label",
      {
        class: "tick chat",
        hidden: true,
        title: "Write the text with the model's chat template, as a message that the model answers",
      },
      chat,
      "as a chat",
    );
    Object.assign(this.controls, {
      chat: {
        set: (on) => {
          chat.checked = Boolean(on);
        },
      },
      max_new: slide("new tokens", {
        min: 1,
        max: 200,
        step: 1,
        value: this.state.max_new,
        change: (x) => this.set("max_new", x),
      }),
      temperature: slide("temperature", {
        min: 0,
        max: 2,
        step: 0.1,
        value: this.state.temperature,
        show: (x) => (x ? x.toFixed(1) : "0: greedy"),
        change: set("temperature"),
      }),
      top_k: slide("top-k", {
        min: 0,
        max: 50,
        step: 1,
        value: this.state.top_k,
        show: (x) => x || "off",
        change: set("top_k"),
      }),
      top_p: slide("top-p", {
        min: 0.05,
        max: 1,
        step: 0.05,
        value: this.state.top_p,
        show: (x) => (x === 1 ? "off" : x.toFixed(2)),
        change: set("top_p"),
      }),
      seed: {
        set: (x) => {
          seed.value = x;
        },
      },
    });
    const { max_new, temperature, top_k, top_p } = this.controls;
    this.form = h(
      "form",
      {
        class: "ask",
        onsubmit: (event) => {
          event.preventDefault();
          this.start(0);
        },
      },
      this.input,
      h(
        "div",
        { class: "row" },
        this.choice,
        max_new,
        temperature,
        top_k,
        top_p,
        h("label", { class: "field short" }, h("span", {}, "seed"), seed),
        this.asChat,
        this.go,
        h(
          "button",
          {
            type: "button",
            class: "read",
            title: "Inspect this text without continuing it",
            onclick: () => this.start(1),
          },
          "Inspect",
        ),
        this.activity.root,
      ),
      this.about,
      this.chips,
    );
    this.text = new TokenText({ pick: (at) => this.pick(at), point: (at) => this.hover(at) });
    this.under = h("p", { class: "note" }, " ");
    this.remark = h("p", { class: "remark", hidden: true });
    this.written = h(
      "div",
      { class: "written", hidden: true },
      this.remark,
      this.before = h("div"),
      this.text.root,
      this.under,
    );
    this.candidates = h("div", { class: "candidates", "aria-live": "polite" });
    this.lens = h("div", { class: "lens" });
    this.inside = new Inside({
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
    this.inside.heads.switched = () => {
      this.view.remember();
      this.tellSwitches();
      this.without();
    };
    this.switches = h("div", { class: "row switches" });
    this.effect = h("section", { class: "effect", hidden: true });
    this.body = h(
      "section",
      { class: "inside", hidden: true },
      h(
        "div",
        { class: "left" },
        this.inside.lines.root,
        h("div", { class: "two" }, this.candidates, this.lens),
      ),
      this.right = h(
        "div",
        { class: "right" },
        this.inside.map.root,
        this.inside.heads.root,
        this.switches,
        this.effect,
      ),
    );
    this.patching = new Patching({
      changed: (patch, push) => {
        this.state.patch = patch;
        this.view.remember(push);
      },
    });
    this.root = h("div", { class: "pane" }, this.form, this.patching.root, this.written, this.body);
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
  again() {
    this.results.clear();
    this.run(false);
  }

  request() {
    const { model, text, chat, temperature, top_k, top_p, seed, without, inspect, max_new } =
      this.state;
    return {
      model,
      text,
      ...(chat && this.model?.chat ? { chat: true } : {}),
      max_new: inspect ? 0 : max_new,
      temperature,
      ...(temperature && top_k ? { top_k } : {}),
      ...(temperature && top_p < 1 ? { top_p } : {}),
      seed,
      off: structuredClone(without),
    };
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
    this.asChat.hidden = !this.model?.chat;
  }

  // Models of generated tasks answer in a few symbols, the likeliest ones; models with a chat
  // template answer messages.
  initial(model = this.model) {
    return {
      ...WritePane.START,
      chat: Number(Boolean(model?.chat)),
      ...(model?.max_new ? { max_new: model.max_new, temperature: 0 } : {}),
    };
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
    this.written.hidden =
      this.body.hidden =
      this.effect.hidden =
      this.remark.hidden =
        true;
    this.under.textContent = " ";
    this.before.replaceChildren();
    this.candidates.replaceChildren();
    this.lens.replaceChildren();
    this.inside.clear();
  }

  async compute(request, signal, say) {
    const off = Object.values(request.off).flat().length;
    let before = null;
    if (off && request.max_new) {
      // the text with all heads, to compare with
      const whole = { ...request, off: {} };
      const known = this.results.get(JSON.stringify(whole));
      if (!known) say("Writing with all heads…");
      before = known ?? (await this.stream(whole, signal, () => {}, null));
      this.results.set(JSON.stringify(whole), before);
      say(`Writing without ${off} head${off > 1 ? "s" : ""}…`);
    }
    const result = (this.partial = {
      request,
      steps: [],
      look: null,
      cut: null,
      ended: null,
      before,
    });
    this.written.hidden = false;
    this.text.show([request.text], { from: 1, first: 0 });
    return this.stream(request, signal, say, result);
  }

  // Follow the events of one continuation; shown: the result that is on screen meanwhile, or null.
  async stream(request, signal, say, shown) {
    const result = shown ?? {
      request,
      steps: [],
      look: null,
      cut: null,
      ended: null,
      before: null,
    };
    for await (const event of lines("write", request, signal)) {
      if (event.waiting) say(`${event.waiting} before you…`);
      if (event.cut) result.cut = event.cut;
      if (event.prompt && shown) {
        this.text.show([...event.prompt.names], {
          first: 0,
          special: new Set(event.prompt.special),
          spaces: new Set(event.prompt.spaces),
        });
      }
      if (event.token) {
        result.steps.push(event.token);
        if (shown) this.text.append(event.token.text);
      }
      if (event.ended) result.ended = event.ended;
      if (event.progress) say(`Inspecting: block ${event.progress[0]} of ${event.progress[1]}…`);
      if (event.look) result.look = event.look;
    }
    return result;
  }

  // After Stop: inspect what was written.
  async stopped() {
    const result = this.partial;
    if (!result || result.look) return;
    await this.activity.run(
      "Inspecting what was written…",
      async (signal, say) => {
        for await (
          const event of lines(
            "write",
            { ...result.request, max_new: 0, written: result.steps.map(({ id }) => id) },
            signal,
          )
        ) {
          if (event.progress) {
            say(`Inspecting: block ${event.progress[0]} of ${event.progress[1]}…`);
          }
          if (event.look) result.look = event.look;
        }
        this.result = result;
        if (result.steps.length) {
          // the address leads to the text as it is, the form keeps its setting
          this.state.next.max_new = this.state.max_new;
          this.state.max_new = result.request.max_new = result.steps.length;
          this.key = JSON.stringify(this.request());
          this.results.set(this.key, result);
        }
        this.activity.say(
          `Stopped after ${result.steps.length} token${result.steps.length === 1 ? "" : "s"}.`,
        );
        this.show(result);
      },
      "stopped",
    );
  }

  summary({ steps, look, ended, request, seconds }) {
    const count = look?.text.names.length ?? 0;
    const many = (n) => `${n.toLocaleString("en")} token${n === 1 ? "" : "s"}`;
    if (ended && !steps.length) {
      return `Nothing was written: the first token that the model chose, ${
        spelt(ended)
      }, ends the text.${
        this.model?.chat && !request.chat
          ? " It was trained on conversations: with “as a chat” it answers."
          : ""
      }`;
    }
    return `${steps.length ? `${many(steps.length)} written` : `${many(count)} inspected`} in ${
      (seconds ?? 0).toFixed(1)
    } s${ended ? `; ${spelt(ended)} ended the text` : ""}.`;
  }

  // What is said above the text.
  remarks({ cut, look, steps }) {
    const many = (n) => n.toLocaleString("en");
    const said = [];
    if (cut) {
      said.push(
        `This text has ${many(cut.of)} tokens${
          steps.length ? ", the written ones included" : ""
        }, and the model reads at most ${many(cut.most)} at once: shown are ${
          steps.length
            ? `the ${many(cut.read)} that it had read when it wrote the last one`
            : `the last ${many(cut.read)}`
        }.`,
      );
    }
    if (look && !look.groups.length) {
      said.push(`There is no attention to show: ${look.reason ?? "this model has none"}.`);
    }
    return said;
  }

  show(result) {
    const { look } = result;
    const group = look?.groups[0];
    const off = Object.values(result.request.off).flat().length;
    this.written.hidden = false;
    this.tokens = look?.text.names ?? [];
    this.spaces = new Set(look?.text.spaces);
    const count = this.tokens.length;
    const chosen = this.early === null || this.early === undefined
      ? null
      : count - result.steps.length + this.early;
    this.early = null;
    if (chosen !== null) this.state.at = chosen;
    if (this.state.at === null || this.state.at >= count) this.state.at = count - 1;
    const said = this.remarks(result);
    this.remark.textContent = said.join(" ");
    this.remark.hidden = !said.length;
    this.before.replaceChildren(
      ...[
        result.before
          ? h(
            "p",
            { class: "before" },
            h("b", {}, "With all heads: "),
            visible(result.request.text),
            result.request.chat ? " " : "",
            h("u", {}, visible(plain(result.before.steps))),
          )
          : null,
        off ? h("p", { class: "after" }, `Without ${names(result.request.off)}:`) : null,
      ].filter(Boolean),
    );
    this.text.show(this.tokens, {
      from: count - result.steps.length,
      first: Math.floor(Math.max(0, this.state.at) / this.text.page) * this.text.page,
      special: new Set(look?.text.special),
      spaces: this.spaces,
    });
    this.body.hidden = !group && !look?.lens;
    this.switches.hidden = !group;
    if (!look) return;
    // the mean over all heads of a long text takes long
    if (count > 2000 && this.state.layer === null) Object.assign(this.state, { layer: 0, head: 0 });
    this.inside.open(result.look).catch((trouble) => this.fail(trouble));
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
    try {
      const row = await this.inside.row(at);
      if (this.shading === asked) this.text.shade(row);
    } catch (trouble) {
      if (trouble.status === 404) this.again();
      else this.fail(trouble);
    }
  }

  // Choose a token; while the text is being written, its candidates are shown, and the rest as soon
  // as it is inspected.
  pick(at, told = true) {
    if (!this.tokens) {
      // a prompt may be one piece until it is inspected
      const step = this.partial?.steps[at - this.text.from];
      if (!step) return;
      this.early = at - this.text.from;
      this.text.choose(at);
      this.body.hidden = true;
      this.under.textContent = `${spelt(step.piece)}: ${
        percent(step.share)
      }. Candidates in its place: ${
        step.candidates.map(([piece, share]) => `${spelt(piece)} ${percent(share)}`).join(", ")
      }`;
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

  // Describe the token under the pointer: its probability, and the attention weight that the chosen
  // token gives it.
  hover(at) {
    if (!this.tokens || at === null) {
      if (this.tokens) this.under.textContent = " ";
      return;
    }
    const steps = this.result?.steps ?? [];
    const step = steps[at - (this.tokens.length - steps.length)];
    const share = this.text.signed ? undefined : this.text.shares?.[at];
    const said = [];
    if (step) said.push(`${spelt(step.piece)} had probability ${percent(step.share)}`);
    if (share !== undefined) {
      said.push(`attention from ${spelt(this.tokens[this.state.at])}: ${percent(share)}`);
    }
    this.under.textContent = said.join("; ") || " ";
  }

  // The candidates in the place of the chosen token, with the probabilities of the model and those
  // that sampling uses.
  async tellCandidates() {
    const { at } = this.state;
    const [temperature, top_k, top_p] = ["temperature", "top_k", "top_p"].map((key) =>
      this.setting(key)
    );
    const look = this.inside.look;
    if (at === null || !look?.lens || !this.tokens) return;
    if (at === 0) {
      this.candidates.replaceChildren(
        h("h2", {}, "Candidates"),
        h(
          "p",
          { class: "note" },
          "Nothing is before the first token: the model predicts only the tokens after it.",
        ),
      );
      return;
    }
    try {
      const found = await get(
        "looks/candidates",
        {
          look: look.id,
          first: at,
          last: at + 1,
          temperature,
          ...(temperature && top_k ? { top_k } : {}),
          ...(temperature && top_p < 1 ? { top_p } : {}),
          top: 8,
        },
        this.inside.controller.signal,
      );
      if (this.state.at !== at || this.inside.look !== look) return;
      this.candidateData = found;
      this.sampling = [
        temperature ? `temperature ${temperature}` : "greedy",
        temperature && top_k ? `top-k ${top_k}` : "",
        temperature && top_p < 1 ? `top-p ${top_p}` : "",
      ]
        .filter(Boolean)
        .join(", ");
      const own = this.tokens[at];
      const { request, steps } = this.result ?? this.partial;
      const drawn = ["temperature", "top_k", "top_p"].some((key) =>
          key in this.state.next
        ) && steps.length
        ? ` (the text was drawn with ${sampled(request)})`
        : "";
      this.candidates.replaceChildren(
        h("h2", {}, "In place of ", h("code", {}, spelt(own))),
        h(
          "p",
          { class: "note" },
          `What the tokens before it predict here. ${spelt(own)} has ${percent(found.shares[0])}.`,
        ),
        h(
          "ul",
          { class: "bars" },
          found.candidates[0].map(([piece, share, drawn]) => {
            const before = h("span", { class: "weight" });
            const after = h("span", { class: "weight drawn" });
            before.style.setProperty("width", `${Math.max(0.5, 100 * share)}%`);
            after.style.setProperty("width", `${100 * drawn}%`);
            return h(
              "li",
              { class: piece === own ? "own" : "" },
              h("code", {}, spelt(piece)),
              h("span", { class: "figures" }, percent(share), h("b", {}, percent(drawn))),
              before,
              after,
            );
          }),
        ),
        h(
          "p",
          { class: "note key" },
          h("span", { class: "swatch" }),
          `${this.by()} `,
          h("span", { class: "swatch drawn" }),
          `${this.sampling}${drawn}`,
        ),
      );
    } catch (trouble) {
      if (trouble.status === 404) this.again();
      else this.fail(trouble);
    }
  }

  // The next token, read from the output of every block.
  async tellLens() {
    const { at } = this.state;
    const look = this.inside.look;
    if (at === null || !look?.lens || !this.tokens) return;
    try {
      const lens = await get("looks/lens", { look: look.id, at }, this.inside.controller.signal);
      if (this.state.at !== at || this.inside.look !== look) return;
      this.lensData = lens;
      const last = lens.layers.length - 1;
      this.lens.replaceChildren(
        h("h2", {}, "After ", h("code", {}, spelt(this.tokens[at]))),
        h(
          "p",
          { class: "note" },
          `The next token, read from every block's output (logit lens)${this.lacking()}.`,
        ),
        h(
          "table",
          {},
          h(
            "tbody",
            {},
            lens.layers.map((list, i) =>
              h(
                "tr",
                { class: i === last ? "own" : "" },
                h("th", { scope: "row" }, i === last ? "output" : `block ${i}`),
                list
                  .slice(0, 3)
                  .map(([piece, share]) =>
                    h(
                      "td",
                      {},
                      h(
                        "span",
                        {},
                        h("code", { title: spelt(piece) }, spelt(piece)),
                        " ",
                        h("small", {}, percent(share)),
                      ),
                    )
                  ),
              )
            ),
          ),
        ),
      );
    } catch (trouble) {
      if (trouble.status === 404) this.again();
      else this.fail(trouble);
    }
  }

  // The heads that the text on screen was written or inspected without.
  lacking() {
    const { off } = (this.result ?? this.partial).request;
    return Object.keys(off).length ? `, without ${names(off)}` : "";
  }
  by() {
    return `by the model${this.lacking()}`;
  }

  tellSwitches() {
    if (!this.inside.group) return;
    const { off, without } = this.state;
    const some = Object.values(off).flat().length;
    const [layer, head] = this.inside.heads.at;
    const at = this.switches.contains(document.activeElement)
      ? document.activeElement.className
      : null;
    const none = layer === null || head === null;
    this.switches.replaceChildren(
      ...[
        h(
          "button",
          {
            type: "button",
            class: "switch",
            disabled: none,
            onclick: () => this.inside.heads.toggle(layer, head),
          },
          none
            ? "Choose a head to switch it off"
            : off[layer]?.includes(head)
            ? `Switch layer ${layer}, head ${head} on`
            : `Switch layer ${layer}, head ${head} off`,
        ),
        some
          ? h(
            "button",
            {
              type: "button",
              class: "all-on",
              onclick: () => {
                for (const key of Object.keys(off)) delete off[key];
                this.inside.heads.draw();
                this.inside.heads.switched();
              },
            },
            "All on",
          )
          : null,
        JSON.stringify(off) === JSON.stringify(without) ? null : h(
          "button",
          {
            type: "button",
            class: "go without",
            onclick: () => {
              this.state.without = structuredClone(off);
              this.start(0);
            },
          },
          some ? `Write without ${some} head${some > 1 ? "s" : ""}` : "Write with all heads",
        ),
      ].filter(Boolean),
    );
    if (at) {
      (
        this.switches.querySelector(`.${at.split(" ").at(-1)}`) ??
          this.switches.querySelector("button")
      ).focus();
    }
  }

  // What switching heads off changes for the text on screen: the log-probability of every token
  // before and after.
  async without() {
    const { off } = this.state;
    const look = this.inside.look;
    this.effect.hidden = !Object.values(off).flat().length;
    this.effects = null;
    if (this.effect.hidden || !look) return;
    try {
      const { tokens, before, after } = await post(
        "looks/without",
        { look: look.id, off },
        this.inside.controller.signal,
      );
      if (this.inside.look !== look) return;
      const change = before.map((x, i) => (x === null ? 0 : after[i] - x));
      const sum = change.reduce((a, b) => a + b, 0);
      const most = Math.max(...change.map(Math.abs)) || 1;
      this.effects = { off: structuredClone(off), tokens, before, after };
      const text = new TokenText({
        point: (i) => {
          note.textContent = i === null || before[i] === null
            ? " "
            : `${spelt(tokens[i])}: log-probability ${number(before[i])} → ${number(after[i])} (${
              number(change[i])
            })`;
        },
      });
      const note = h("p", { class: "note" }, " ");
      text.show(tokens, { spaces: this.spaces });
      text.shade(
        change.map((x) => x / most),
        true,
      );
      this.effect.replaceChildren(
        h("h2", {}, `Without ${names(off)}`),
        h(
          "p",
          {},
          `The log-probability of this text changes by ${number(sum)} nats, ${
            number(sum / Math.max(1, tokens.length - 1))
          } per token. Orange tokens become less likely, blue ones more.`,
        ),
        text.root,
        note,
      );
    } catch (trouble) {
      this.effect.replaceChildren(h("p", { class: "note" }, trouble.message));
    }
  }

  caption() {
    const written = plain(this.result?.steps ?? []);
    const { request } = this.result ?? {};
    const sampling = written
      ? ` · ${sampled(request)}${request.temperature ? `, seed ${request.seed}` : ""}`
      : "";
    return {
      title: !request
        ? ""
        : written
        ? `“${request.text.slice(0, 80)}” … “${written.slice(0, 120).trim()}”`
        : `“${request.text.slice(0, 200)}”`,
      source: `${this.source()}${
        Object.keys(request?.off ?? {}).length ? ` without ${names(request.off)}` : ""
      }${request?.chat ? " · as a chat" : ""}${
        this.inside.group ? ` · ${this.inside.title()}` : ""
      }${sampling}`,
      file: [
        this.state.model,
        !this.inside.group
          ? null
          : this.state.layer === null
          ? "all-heads"
          : `layer${this.state.layer}${this.state.head === null ? "" : `-head${this.state.head}`}`,
      ]
        .filter(Boolean)
        .join("-"),
    };
  }

  figures() {
    if (this.body.hidden) return [];
    const { at } = this.state;
    const found = this.candidateData;
    const effects = this.effects;
    const last = (this.lensData?.layers.length ?? 0) - 1;
    return [
      ...this.inside.figures(),
      found && at > 0
        ? barsFigure(
          `In place of ${spelt(this.tokens[at])}`,
          found.candidates[0].map(([piece, ...shares]) => [spelt(piece), ...shares]),
          [this.by(), this.sampling],
        )
        : null,
      this.lensData
        ? tableFigure(
          `After ${spelt(this.tokens[at])}: the next token by each block${this.lacking()}`,
          this.lensData.layers.map((list, i) => [
            i === last ? "output" : `block ${i}`,
            ...list.slice(0, 3).map(([piece, share]) => `${spelt(piece)} ${percent(share)}`),
          ]),
        )
        : null,
      effects
        ? textFigure(
          `Without ${names(effects.off)}: change in log-probability`,
          effects.tokens,
          effects.before.map((x, i) => (x === null ? 0 : effects.after[i] - x)),
          "nats",
        )
        : null,
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
      candidates: this.candidateData ?? null,
      lens: this.lensData ?? null,
      without: this.effects ?? null,
      patching: this.patching.data(),
      attention: await this.inside.data(),
    };
  }
}

const plain = (steps) => steps.map(({ text }) => text).join("");

const sampled = ({ temperature, top_k, top_p }) =>
  temperature
    ? `temperature ${temperature}${top_k ? `, top-k ${top_k}` : ""}${
      top_p ? `, top-p ${top_p}` : ""
    }`
    : "greedy sampling";

const names = (off) =>
  Object.entries(off)
    .flatMap(([layer, heads]) => heads.map((head) => `layer ${layer} head ${head}`))
    .join(", ");

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
