/** The attention inside a model for one result: kind of attention, head grid, map and lines. */

import { floats, get, perLayer, rowsOf } from "./api.js";
import { sentence } from "./activity.js";
import { choose, h, number, segments } from "./dom.js";
import { HeadGrid, headTitle } from "./heads.js";
import { HeatMap } from "./map.js";
import { TokenLines } from "./tokens.js";

// name of a kind of attention -> its title, what its queries and keys are, and its name in a menu
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
const WHOLE = 512; // largest number of tokens per side whose weights are requested at once
const LARGEST = 4e6; // most weights that a saved file holds

export class Inside {
  // state: { group, layer, head, by, scale, colouring, at }, shared with the pane
  // changed: called when it changes; drew: when another map is drawn; pick: when a query is chosen;
  // expired: when the server no longer holds the result
  constructor({ state, changed, drew, pick = null, expired, off = null, tall = 400 }) {
    Object.assign(this, {
      state,
      changed,
      drew,
      picked: pick,
      expired,
      look: null,
      missing: false,
    });
    this.lines = new TokenLines({
      point: (at) =>
        this.map.emphasise(at && at[0] === "below" ? at[1] + (this.first ?? 0) : this.state.at),
      pick: (side, i) => {
        if (side === "below") this.pick(i + (this.first ?? 0));
      },
    });
    this.map = new HeatMap({
      tall,
      fixed: 1,
      what: "attention weight",
      pick: (row) => this.pick(row),
      scaled: (own) => {
        this.state.scale = own ? "own" : null;
        this.heads.own = own;
        this.heads.draw();
        this.changed();
      },
      read: (at) =>
        this.lines.focus(
          at && this.inLines(at[0]) ? ["below", at[0] - (this.first ?? 0)] : null,
          false,
        ),
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

  inLines(row) {
    const i = row - (this.first ?? 0);
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
    return (
      this.look?.groups.find((one) => one.name === this.state.group) ?? this.look?.groups[0] ?? null
    );
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
    const kinds = look.groups.map((one) => [one.name, KINDS[one.name]?.[2] ?? one.name]);
    this.kind = kinds.length > 1
      ? choose("attention", kinds, state.group, (name) => {
        Object.assign(state, { group: name, layer: null, head: null, at: null });
        this.changed();
        this.regroup();
      })
      : null;
    this.by = this.group.words
      ? segments(
        "by",
        [
          ["words", "words"],
          ["pieces", "pieces"],
        ],
        state.by,
        (by) => {
          state.by = by;
          state.at = null;
          this.changed();
          this.draw();
        },
      )
      : null;
    this.controls.replaceChildren(...[this.kind, this.by].filter(Boolean));
  }

  // Show another kind of attention of the same result.
  async regroup() {
    const { group, state } = this;
    if (Boolean(group.words) !== Boolean(this.by)) {
      const kept = this.kind?.contains(document.activeElement);
      this.choices();
      if (kept) this.kind.querySelector("select").focus();
    }
    this.heads.forget();
    this.heads.offer([
      "map",
      "entropy",
      "distance",
      "maximum",
      "sink",
      ...(this.look.effects === false ? [] : ["effect"]),
    ]);
    this.heads.show(group.layers, group.heads, [state.layer, state.head]);
    [state.layer, state.head] = this.heads.at;
    this.changed();
    await Promise.all([this.draw(), this.measure()]);
  }

  // The names and weights of the chosen head as a source for the map; weights of long texts are
  // requested in parts.
  async source(signal) {
    const {
      group,
      look,
      state: { layer, head, by },
    } = this;
    const words = group.words && by === "words";
    if (words) {
      this.words[group.name] ??= await get(
        "looks/words",
        { look: look.id, group: group.name },
        signal,
      );
    }
    const names = words
      ? [this.words[group.name].rows, this.words[group.name].columns]
      : [group.rows.names, group.columns.names];
    const given = { look: look.id, group: group.name, layer, head, format: "float32" };
    const part = words
      ? async () => {
        const found = await floats("looks/map", { ...given, by }, signal);
        return { weights: rowsOf(found), most: found.most };
      }
      : async (row, rows, key, keys) => {
        const found = await floats(
          "looks/map",
          {
            ...given,
            row,
            rows,
            key,
            keys,
            cells: Math.max(row + rows, key + keys) <= WHOLE ? WHOLE : 256,
          },
          signal,
        );
        return { weights: rowsOf(found), most: found.most };
      };
    const special = words
      ? [new Set(), new Set()]
      : [new Set(group.columns.special), new Set(group.rows.special)];
    return { rows: names[0], keys: names[1], part, special, words };
  }

  title() {
    const { group, state } = this;
    return `${KINDS[group.name]?.[0] ?? group.name}, ${
      headTitle(group.layers, group.heads, state.layer, state.head)
    }`;
  }

  // Draw the map and the lines of the chosen head.
  async draw() {
    const { signal } = this.controller;
    const asked = (this.asked = {});
    const { group } = this;
    try {
      const source = await this.source(signal);
      if (this.asked !== asked) return;
      const { rows, keys } = source;
      if (this.state.at !== null && this.state.at >= rows.length) this.state.at = null;
      let loaded = null;
      if (Math.max(rows.length, keys.length) <= WHOLE) {
        loaded = await source.part(0, rows.length, 0, keys.length);
        if (this.asked !== asked) return;
        source.part = (row, n, key, m) =>
          n === rows.length && m === keys.length ? loaded : {
            weights: loaded.weights.slice(row, row + n).map((x) => x.subarray(key, key + m)),
            most: loaded.most,
          };
      }
      this.shown = { ...source, loaded };
      const [, axes] = KINDS[group.name] ?? ["", ["query", "key"]];
      this.map.call(this.title(), axes);
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
  async drawLines() {
    const shown = this.shown;
    const { rows, keys, special, loaded } = shown;
    const axes = (KINDS[this.group.name] ?? ["", ["query", "key"]])[1];
    const label = [axes[1], axes[0]].map((text) =>
      text
        .replace(/^(query|key): /, "")
        .replace("query", "queries")
        .replace("key", "keys")
    );
    const at = this.state.at ?? rows.length - 1;
    const [first, last] = this.group.name === "cross"
      ? [0, rows.length]
      : this.lines.fitting(rows, at);
    if (last - first === rows.length) {
      this.first = 0;
      if (!loaded) return;
      this.lines.show({
        above: keys,
        below: rows,
        weights: loaded.weights,
        label,
        special,
        chosen: this.state.at,
      });
      return;
    }
    const near = await shown.part(first, last - first, first, last - first);
    if (this.shown !== shown) return;
    this.first = first;
    const cut = (list) => list.slice(first, last);
    const own = (set, by) =>
      new Set([...set].filter((i) => i >= first && i < last).map((i) => i - first + by));
    const rest = near.weights.map((row) => Math.max(0, 1 - row.reduce((a, x) => a + x, 0)));
    this.lines.show({
      above: [`${(rows.length - last + first).toLocaleString("en")} others`, ...cut(keys)],
      below: cut(rows),
      weights: near.weights.map((row, i) => [rest[i], ...row]),
      label: [
        `keys near token ${(at + 1).toLocaleString("en")} of ${rows.length.toLocaleString("en")}`,
        label[1],
      ],
      special: [own(special[0], 1).add(0), own(special[1], 0)],
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
    if (this.inLines(at) && this.lines.below.length === this.shown.rows.length) {
      this.lines.choose(at - this.first);
    } else this.drawLines();
  }

  // The attention of one query over all keys, from the chosen head.
  async row(at) {
    const {
      look,
      group,
      state: { layer, head },
    } = this;
    return (
      await floats(
        "looks/row",
        { look: look.id, group: group.name, layer, head, at },
        this.controller.signal,
      )
    ).data;
  }

  // Request the numbers by which the head grid is coloured.
  async measure() {
    const { look, group, heads } = this;
    const { signal } = this.controller;
    try {
      if (heads.colouring === "map") {
        if (heads.maps) return;
        const maps = await floats(
          "looks/thumbnails",
          { look: look.id, group: group.name, cells: 24 },
          signal,
        );
        if (this.group === group) {
          heads.tellMaps({
            ...maps,
            tokens: [group.rows.names.length, group.columns.names.length],
          });
        }
        return;
      }
      if (heads.range()) return;
      for await (
        const line of perLayer(
          heads.colouring === "effect" ? "effects" : "heads",
          look.id,
          group.name,
          signal,
        )
      ) {
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
    const { rows, keys, part } = this.shown;
    const full = rows.length * keys.length <= LARGEST;
    const { group, state } = this;
    const weights = [];
    if (full && Math.max(rows.length, keys.length) <= WHOLE) {
      weights.push(...(await part(0, rows.length, 0, keys.length)).weights);
    } else if (full) {
      for (let row = 0; row < rows.length; row += WHOLE) {
        const n = Math.min(WHOLE, rows.length - row);
        const band = Array.from({ length: n }, () => []);
        for (let key = 0; key < keys.length; key += WHOLE) {
          const found = await floats("looks/map", {
            look: this.look.id,
            group: group.name,
            layer: state.layer,
            head: state.head,
            format: "float32",
            row,
            rows: n,
            key,
            keys: Math.min(WHOLE, keys.length - key),
            cells: WHOLE,
          });
          rowsOf(found).forEach((own, i) => band[i].push(...own));
        }
        weights.push(...band.map((one) => Float32Array.from(one)));
      }
    } else weights.push(...(await part(0, rows.length, 0, keys.length)).weights);
    return {
      attention: group.name,
      layer: state.layer,
      head: state.head,
      title: this.title(),
      queries: rows,
      keys,
      weights,
      ...(full ? {} : {
        pooled: `each number is the mean over some queries and the sum over ${
          number(keys.length / weights[0].length)
        } keys of ${rows.length} x ${keys.length}`,
      }),
      heads: this.heads.told,
      small_maps: this.heads.colouring === "map" ? this.heads.maps : null,
    };
  }
}
