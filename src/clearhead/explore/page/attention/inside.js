/** The attention inside a model for one result: kind of attention, head grid, map and lines. */

import { sentence } from "../activity.js";
import { floats, perLayer } from "../api.js";
import { choose, segments } from "../controls.js";
import { h } from "../dom.js";
import { total } from "../numbers.js";
import { HeadGrid, headTitle } from "./head_grid.js";
import { HeatMap } from "./heat_map.js";
import { attentionSource, loadWhole, savedWeights } from "./source.js";
import { TokenLines } from "./token_lines.js";

// The kinds of attention: a title, what its queries and keys are, and its name in a menu.
const KINDS = {
  cross: ["Cross-attention", ["query: translation", "key: source"], "to the source"],
  encoder: ["Self-attention of the encoder", ["query: source", "key: source"], "within the source"],
  decoder: [
    "Self-attention of the decoder",
    ["query: translation", "key: translation so far"],
    "within the translation",
  ],
  self: ["Self-attention", ["query", "key"], "self-attention"],
};
const kindOf = (name) => KINDS[name] ?? [name, ["query", "key"], name];

export class Inside {
  // state: { group, layer, head, by, scale, colouring, at }, shared with the pane
  // changed: called when it changes; drew: when another map is drawn; pick: when a query is chosen;
  // expired: when the server no longer holds the result
  constructor({ state, changed, drew, pick = null, expired, off = null, tall = 400 }) {
    Object.assign(this, { state, changed, drew, picked: pick, expired });
    Object.assign(this, { look: null, missing: false });
    this.first = 0; // the number of the first query that has lines
    this.lines = new TokenLines({
      point: (at) => {
        const query = at?.[0] === "below" ? at[1] + this.first : this.state.at;
        this.map.emphasise(query);
      },
      pick: (side, i) => {
        if (side === "below") this.pick(i + this.first);
      },
    });
    this.map = new HeatMap({
      tall,
      fixed: 1,
      what: "attention weight",
      pick: (row) => this.pick(row),
      scaled: (own) => this.rescale(own),
      read: (at) => {
        const drawn = at && this.inLines(at[0]);
        this.lines.focus(drawn ? ["below", at[0] - this.first] : null, false);
      },
    });
    this.heads = new HeadGrid({
      off,
      colouring: state.colouring ?? "map",
      pick: (layer, head) => {
        Object.assign(this.state, { layer, head });
        this.changed();
        this.draw();
      },
      recolour: (to) => {
        this.state.colouring = to;
        this.changed();
        this.measure();
      },
    });
    this.controls = h("div", { class: "row" });
  }

  rescale(own) {
    this.state.scale = own ? "own" : null;
    this.heads.own = own;
    this.heads.draw();
    this.changed();
  }

  inLines(row) {
    const i = row - this.first;
    return this.lines.below && i >= 0 && i < this.lines.below.length;
  }

  // Remove everything: nothing of an earlier result stays on screen.
  clear() {
    this.controller?.abort();
    this.look = this.shown = null;
    this.missing = false;
    this.lines.clear();
    this.map.clear();
    this.heads.forget();
  }

  get group() {
    const groups = this.look?.groups ?? [];
    return groups.find((group) => group.name === this.state.group) ?? groups[0] ?? null;
  }

  // Show an inspection; one without groups, of a model whose attention is not seen, has no figures.
  async open(look) {
    this.controller?.abort();
    this.controller = new AbortController();
    this.look = look;
    this.drawn = null;
    this.words = {};
    this.lines.root.hidden = !look.groups.length;
    if (!look.groups.length) {
      this.map.clear();
      this.heads.hide();
      return;
    }
    this.state.group = this.group.name;
    this.heads.own = this.state.scale === "own";
    this.heads.colouring = this.state.colouring ?? "map";
    this.map.own = this.heads.own;
    this.choices();
    await this.regroup();
  }

  choices() {
    const { look, state } = this;
    const kinds = look.groups.map(({ name }) => [name, kindOf(name)[2]]);
    const chooseKind = (name) => {
      Object.assign(state, { group: name, layer: null, head: null, at: null });
      this.changed();
      this.regroup();
    };
    const chooseBy = (by) => {
      Object.assign(state, { by, at: null });
      this.changed();
      this.draw();
    };
    const sizes = [
      ["words", "words"],
      ["pieces", "pieces"],
    ];
    this.kind = kinds.length > 1 ? choose("attention", kinds, state.group, chooseKind) : null;
    this.by = this.group.words ? segments("by", sizes, state.by, chooseBy) : null;
    this.controls.replaceChildren(...[this.kind, this.by].filter(Boolean));
  }

  // Show another kind of attention of the same result.
  async regroup() {
    const { group, state } = this;
    if (Boolean(group.words) !== Boolean(this.by)) {
      const focused = this.kind?.contains(document.activeElement);
      this.choices();
      if (focused) this.kind.querySelector("select").focus();
    }
    const colourings = ["map", "entropy", "distance", "maximum", "sink"];
    if (this.look.effects !== false) colourings.push("effect");
    this.heads.forget();
    this.heads.offer(colourings);
    this.heads.show(group.layers, group.heads, [state.layer, state.head]);
    [state.layer, state.head] = this.heads.at;
    this.changed();
    await Promise.all([this.draw(), this.measure()]);
  }

  title() {
    const { group, state } = this;
    const heads = headTitle(group.layers, group.heads, state.layer, state.head);
    return `${kindOf(group.name)[0]}, ${heads}`;
  }

  // Draw the map and the lines of the chosen head.
  async draw() {
    const { signal } = this.controller;
    const asked = (this.asked = {});
    const { group } = this;
    try {
      const source = await attentionSource(this, signal);
      if (this.asked !== asked) return;
      const loaded = await loadWhole(source);
      if (this.asked !== asked) return;
      if (this.state.at >= source.rows.length) this.state.at = null;
      this.shown = { ...source, loaded };
      this.map.call(this.title(), kindOf(group.name)[1]);
      this.map.show(source, true);
      this.map.emphasise(this.state.at);
      this.missing = false;
      this.drew();
      await this.drawLines();
    } catch (trouble) {
      if (trouble.status === 404) return this.expired();
      this.missing ||= Boolean(trouble.offline);
      if (trouble.name !== "AbortError") throw trouble;
    }
  }

  // The lines of all tokens, or for a long text on itself those of tokens near the chosen one, with
  // the others as one.
  drawLines() {
    const { rows, keys, special, loaded } = this.shown;
    const label = this.rowNames();
    const at = this.state.at ?? rows.length - 1;
    const self = this.group.name !== "cross";
    const [first, last] = self ? this.lines.fitting(rows, at) : [0, rows.length];
    if (last - first < rows.length) return this.drawNear(at, first, last, label);
    this.first = 0;
    if (!loaded) return;
    const { weights } = loaded;
    const { at: chosen } = this.state;
    this.lines.show({ above: keys, below: rows, weights, label, special, chosen });
  }

  // What the two rows of lines are, keys first.
  rowNames() {
    const [queries, keys] = kindOf(this.group.name)[1];
    const plural = (text) => text.replace("query", "queries").replace("key", "keys");
    return [keys, queries].map((text) => plural(text.replace(/^(query|key): /, "")));
  }

  async drawNear(at, first, last, label) {
    const { shown } = this;
    const { rows, keys, special } = shown;
    const near = await shown.part(first, last - first, first, last - first);
    if (this.shown !== shown) return;
    this.first = first;
    const count = (n) => n.toLocaleString("en");
    // the numbers of special tokens among the drawn ones; `by` tokens stand before those
    const among = (set, by) => {
      const drawn = [...set].filter((i) => i >= first && i < last);
      return new Set(drawn.map((i) => i - first + by));
    };
    const weights = near.weights.map((row) => [Math.max(0, 1 - total([...row])), ...row]);
    this.lines.show({
      above: [`${count(rows.length - last + first)} others`, ...keys.slice(first, last)],
      below: rows.slice(first, last),
      weights,
      label: [`keys near token ${count(at + 1)} of ${count(rows.length)}`, label[1]],
      special: [among(special[0], 1).add(0), among(special[1], 0)],
      chosen: at - first,
    });
  }

  // A query was chosen in the map or the lines.
  pick(at) {
    this.choose(at);
    this.changed();
    this.picked?.(at);
  }

  // Emphasise a query.
  choose(at) {
    this.state.at = at;
    this.map.emphasise(at);
    if (!this.shown) return;
    const all = this.inLines(at) && this.lines.below.length === this.shown.rows.length;
    if (all) this.lines.choose(at - this.first);
    else this.drawLines();
  }

  // The attention of one query over all keys, from the chosen head.
  async row(at) {
    const {
      look,
      group,
      state: { layer, head },
    } = this;
    const query = { look: look.id, group: group.name, layer, head, at };
    return (await floats("looks/row", query, this.controller.signal)).data;
  }

  // Request the numbers by which the head grid is coloured.
  async measure() {
    const { look, group, heads } = this;
    const { signal } = this.controller;
    try {
      if (heads.colouring === "map") {
        if (heads.maps) return;
        const query = { look: look.id, group: group.name, cells: 24 };
        const maps = await floats("looks/thumbnails", query, signal);
        const tokens = [group.rows.names.length, group.columns.names.length];
        if (this.group === group) heads.tellMaps({ ...maps, tokens });
        return;
      }
      if (heads.range()) return;
      const what = heads.colouring === "effect" ? "effects" : "heads";
      for await (const line of perLayer(what, look.id, group.name, signal)) {
        if (this.group === group) heads.tell(line);
      }
    } catch (trouble) {
      if (trouble.name !== "AbortError") heads.legend.textContent = sentence(trouble);
    }
  }

  figures() {
    return this.group ? [this.lines.svg(this.title()), this.map.svg(), this.heads.svg()] : [];
  }

  // All names and weights that are shown, in full unless there are millions.
  async data() {
    if (!this.shown) return null;
    const { group, state } = this;
    return {
      attention: group.name,
      layer: state.layer,
      head: state.head,
      title: this.title(),
      ...(await savedWeights(this)),
      heads: this.heads.told,
      small_maps: this.heads.colouring === "map" ? this.heads.maps : null,
    };
  }
}
