/**
 * The strip of a caption: one panel per word, the image lit where the model looked, all on one
 * scale (Figure 3 of Xu et al. 2015).
 */

import { tint } from "../colours.js";
import { button, saver } from "../controls.js";
import { ARROWS, h, modified, s } from "../dom.js";
import { heading, scaleBar } from "../figures/sheet.js";
import { clamp, number } from "../numbers.js";
import { light, shade } from "./lit_image.js";

const PANEL = 88; // pixels of a panel on screen
const SAVED = 150; // of one in a figure
const ACROSS = 7; // panels per row of a figure
const PACE = 220; // milliseconds per word when a caption is played

export class WordStrip {
  // pick: called with the number of a chosen word; lit: with that of the word that is reached in
  // playing, or null at the end
  constructor({ pick, lit }) {
    Object.assign(this, { pick, lit, words: [], maps: [], at: null, reached: null });
    this.list = h("div", {
      class: "strip",
      role: "listbox",
      "aria-label": "Words of the caption",
      "aria-orientation": "horizontal",
    });
    const turn = () => (this.reached === null ? this.play() : this.pause());
    this.button = button("Play", turn, { class: "play" });
    this.root = h("div", { class: "stripbox" }, this.list);
    this.controls = [this.button, saver(() => this.svg())];
  }

  clear() {
    this.pause();
    Object.assign(this, { words: [], maps: [], at: null, image: null });
    this.list.replaceChildren();
  }

  // image: what was looked at; maps: rows of numbers for each word; range: the numbers that are
  // dark and fully lit; what: their unit; title: of the figure
  show({ image, words, maps, range, what, title, at }) {
    const same = this.image === image && this.maps === maps;
    Object.assign(this, { image, words, maps, range, what, title });
    const focused = this.list.contains(document.activeElement);
    if (!same) this.list.replaceChildren(...words.map((word, i) => this.panel(word, i)));
    this.choose(at);
    if (!same && focused) this.list.children[at]?.focus();
  }

  // The image lit for one word, over the word.
  panel(word, i) {
    const { image, maps, range } = this;
    const tall = Math.round((PANEL * image.height) / image.width);
    const canvas = h("canvas", { width: 2 * PANEL, height: 2 * tall, "aria-hidden": "true" });
    canvas.style.setProperty("aspect-ratio", `${PANEL} / ${tall}`);
    light(canvas.getContext("2d"), image, maps[i], range, canvas.width, canvas.height);
    const pick = () => {
      this.pause();
      this.pick(i);
    };
    const events = { onclick: pick, onkeydown: (event) => this.key(event, i) };
    const look = { type: "button", role: "option", "data-word": i };
    return h("button", { ...look, ...events }, canvas, h("span", { dir: "auto" }, word));
  }

  // Mark a word as the one that is shown.
  choose(at) {
    this.at = at;
    [...this.list.children].forEach((panel, i) => {
      panel.setAttribute("aria-selected", i === at);
      panel.tabIndex = i === at ? 0 : -1;
      panel.classList.toggle("later", this.reached !== null && i > at);
    });
  }

  key(event, i) {
    const last = this.words.length - 1;
    const [down, right] = ARROWS[event.key] ?? [0, 0];
    const to = { Home: 0, End: last }[event.key] ?? i + down + right;
    if (to === i && !["Home", "End"].includes(event.key)) return;
    if (modified(event) || event.altKey) return;
    event.preventDefault();
    this.pause();
    const next = clamp(to, 0, last);
    this.pick(next);
    this.list.children[next].focus();
  }

  // Show one word after another.
  play() {
    this.pause();
    if (!this.words.length) return;
    this.button.textContent = "Pause";
    this.reached = -1;
    const step = () => {
      this.reached += 1;
      if (this.reached >= this.words.length) return this.pause();
      this.choose(this.reached);
      this.lit(this.reached);
      this.timer = setTimeout(step, PACE);
    };
    step();
  }

  pause() {
    clearTimeout(this.timer);
    if (this.reached === null) return;
    this.reached = null;
    this.button.textContent = "Play";
    this.lit(null);
  }

  svg() {
    if (!this.words.length) return null;
    const tall = (SAVED * this.image.height) / this.image.width;
    // the image itself is the first panel
    const panels = [[null, ""], ...this.words.map((word, i) => [this.maps[i], word])];
    const across = Math.min(ACROSS, panels.length);
    const down = tall + 28;
    const low = 26 + Math.ceil(panels.length / across) * down;
    const width = Math.max(across * (SAVED + 6), 7.6 * this.title.length, 320);
    const root = s("svg", { width, height: low + 36 }, heading(this.title));
    panels.forEach(([map, word], i) => {
      const x = (i % across) * (SAVED + 6);
      const y = 26 + Math.floor(i / across) * down;
      const href = this.lighted(map, 2 * SAVED, Math.round(2 * tall)).toDataURL();
      const place = { x, y, width: SAVED, height: tall, preserveAspectRatio: "none" };
      const below = { x: x + SAVED / 2, y: y + tall + 16, "text-anchor": "middle" };
      root.append(
        s("image", { href, ...place }),
        s("text", { ...below, "font-size": 13, fill: tint("ink") }, word),
      );
    });
    const [least, most] = this.range.map(number);
    const label = `${this.what}, one scale for all words`;
    root.append(scaleBar({ x: 0, y: low + 6, low: least, high: most, label, shade }));
    return root;
  }

  // The image on a canvas, lit by a map if there is one.
  lighted(map, width, height) {
    const canvas = h("canvas", { width, height });
    const c = canvas.getContext("2d");
    if (map) light(c, this.image, map, this.range, width, height);
    else c.drawImage(this.image, 0, 0, width, height);
    return canvas;
  }
}
