/** A grid of small pictures, one per channel of a stage of a network; a channel can be chosen. */

import { colour, tint } from "../colours.js";
import { button, legendBar, saver } from "../controls.js";
import { ARROWS, h, keepFocus, paintPixels, s, themed } from "../dom.js";
import { heading, scaleBar } from "../figures/sheet.js";
import { number, spread } from "../numbers.js";
import { shaped } from "./patch_weights.js";

export const PER_PAGE = 48; // channels that are shown at a time
const CELL = 56; // pixels of a map in the SVG
const ACROSS = 8; // maps per row of the SVG

export class FeatureGrid {
  // pick: called with the chosen channel; turn: with the number of another page
  constructor({ pick, turn }) {
    Object.assign(this, { pick, turn, maps: null, channels: [], at: null });
    this.grid = h("div", { class: "features", role: "listbox", "aria-label": "Feature maps" });
    this.legend = h("p", { class: "legend" });
    const go = (text, name, by) =>
      button(text, () => this.turn(this.page + by), { "aria-label": name });
    this.before = go("←", "Earlier channels", -1);
    this.after = go("→", "Further channels", 1);
    this.where = h("span", {});
    const save = saver(() => this.svg());
    const pages = h("div", { class: "pages" }, this.before, this.where, this.after, save);
    this.root = h("div", { class: "featurebox", hidden: true }, this.grid, this.legend, pages);
    themed(this, "draw");
  }

  // title: of the stage; maps: { data, shape: [channels, rows, columns] } of these channels; page:
  // its number, of a stage with `of` channels
  show({ title, maps, channels, page, of, at }) {
    Object.assign(this, { title, maps, channels, page, of, at });
    this.root.hidden = false;
    this.draw();
  }

  clear() {
    this.maps = null;
    this.root.hidden = true;
    this.grid.replaceChildren();
  }

  // The numbers of one channel, row by row.
  numbers(channel) {
    const [, rows, columns] = this.maps.shape;
    const from = this.channels.indexOf(channel) * rows * columns;
    return this.maps.data.subarray(from, from + rows * columns);
  }

  // The numbers of one channel as rows.
  rows(channel) {
    const [, rows, columns] = this.maps.shape;
    return shaped(this.numbers(channel), [rows, columns]);
  }

  get most() {
    return this.maps.data.reduce((a, x) => Math.max(a, Math.abs(x)), 0) || 1;
  }

  get signed() {
    return this.maps.data.some((x) => x < 0);
  }

  choose(channel) {
    this.at = channel;
    this.draw();
    this.pick(channel);
  }

  canvas(channel) {
    const [, height, width] = this.maps.shape;
    const { most } = this;
    const numbers = this.numbers(channel);
    const canvas = h("canvas", { width, height, "aria-hidden": "true" });
    return paintPixels(canvas, (i) => {
      const x = numbers[i];
      return [...colour(Math.sign(x) * Math.sqrt(Math.abs(x) / most)), 255];
    });
  }

  draw() {
    if (!this.maps) return;
    const pictures = this.channels.map((channel) => this.picture(channel));
    keepFocus(this.grid, "channel", () => this.grid.replaceChildren(...pictures));
    const low = this.signed ? -1 : 0;
    const bar = legendBar((t) => colour(low + t * (1 - low)));
    const ends = [number(low * this.most), bar, `${number(this.most)} activation`];
    this.legend.replaceChildren(h("span", { class: "ends" }, ends), "(colours: square root)");
    const first = this.page * PER_PAGE;
    const pages = this.of > PER_PAGE;
    const range = `${first + 1} to ${first + this.channels.length} of `;
    this.where.textContent = `${pages ? range : ""}${this.of} channels`;
    this.before.hidden = this.after.hidden = !pages;
    this.before.disabled = this.page === 0;
    this.after.disabled = first + PER_PAGE >= this.of;
  }

  // The map of a channel as a button.
  picture(channel) {
    const most = number(spread(this.numbers(channel))[1]);
    const name = `channel ${channel}, largest value ${most}`;
    // one of them can be reached with Tab: the chosen one, or the first
    const stop = this.channels.includes(this.at) ? this.at : this.channels[0];
    return h(
      "button",
      {
        type: "button",
        role: "option",
        "data-channel": channel,
        title: name,
        "aria-label": name,
        "aria-selected": channel === this.at,
        tabindex: channel === stop ? 0 : -1,
        onclick: () => this.choose(channel),
        onkeydown: (event) => this.key(event, channel),
      },
      this.canvas(channel),
    );
  }

  key(event, channel) {
    if (!ARROWS[event.key]) return;
    event.preventDefault();
    const size = (this.grid.firstChild?.offsetWidth ?? CELL) + 4;
    const wide = Math.max(1, Math.round(this.grid.clientWidth / size)); // channels per row
    const [down, right] = ARROWS[event.key];
    const to = this.channels[this.channels.indexOf(channel) + down * wide + right];
    if (to === undefined) return;
    this.choose(to);
    this.grid.querySelector(`[data-channel="${to}"]`)?.focus();
  }

  svg() {
    if (!this.maps) return null;
    const [, ny, nx] = this.maps.shape;
    const tall = Math.round((CELL * ny) / nx);
    const rows = Math.ceil(this.channels.length / ACROSS);
    const low = 26 + rows * (tall + 16);
    const root = s(
      "svg",
      { width: ACROSS * (CELL + 4), height: low + 40, "font-size": 10, fill: tint("soft") },
      heading(`Feature maps, ${this.title}`),
    );
    this.channels.forEach((channel, i) => {
      const x = (i % ACROSS) * (CELL + 4);
      const y = 26 + Math.floor(i / ACROSS) * (tall + 16);
      const place = { x, y, width: CELL, height: tall };
      const href = this.canvas(channel).toDataURL();
      const pixels = { preserveAspectRatio: "none", "image-rendering": "pixelated" };
      const chosen = channel === this.at;
      const stroke = tint(chosen ? "accent" : "hair");
      root.append(
        s("image", { ...place, href, ...pixels }),
        s("rect", { ...place, fill: "none", stroke, "stroke-width": chosen ? 2.5 : 1 }),
        s("text", { x, y: y + tall + 11 }, channel),
      );
    });
    const { most, signed } = this;
    const ends = { low: number(signed ? -most : 0), high: number(most) };
    root.append(scaleBar({ x: 0, y: low + 8, ...ends, label: "activation", signed, root: true }));
    return root;
  }
}
