/**
 * The strip of a caption: one panel per word, the image lit where the model looked, all on one
 * scale (Figure 3 of Xu et al. 2015).
 */

import { tint } from "./colours.js";
import { h, number, s, saver } from "./dom.js";
import { scaleBar } from "./figure.js";
import { light, shade } from "./light.js";

const PANEL = 88;
const SAVED = 150;
const ACROSS = 7; // pixels of a panel on screen, of one in a figure, and panels per row of a figure
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
    this.button = h(
      "button",
      {
        type: "button",
        class: "play",
        onclick: () => (this.reached === null ? this.play() : this.pause()),
      },
      "Play",
    );
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
    if (!same) {
      const focused = this.list.contains(document.activeElement);
      const tall = Math.round((PANEL * image.height) / image.width);
      this.list.replaceChildren(
        ...words.map((word, i) => {
          const canvas = h("canvas", { width: 2 * PANEL, height: 2 * tall, "aria-hidden": "true" });
          canvas.style.setProperty("aspect-ratio", `${PANEL} / ${tall}`);
          light(canvas.getContext("2d"), image, maps[i], range, canvas.width, canvas.height);
          return h(
            "button",
            {
              type: "button",
              role: "option",
              "data-word": i,
              onclick: () => {
                this.pause();
                this.pick(i);
              },
              onkeydown: (event) => this.key(event, i),
            },
            canvas,
            h("span", { dir: "auto" }, word),
          );
        }),
      );
      this.choose(at);
      if (focused) this.list.children[at]?.focus();
    } else this.choose(at);
  }

  // Mark a word as the one that is shown.
  choose(at) {
    this.at = at;
    [...this.list.children].forEach((one, i) => {
      one.setAttribute("aria-selected", i === at);
      one.tabIndex = i === at ? 0 : -1;
      one.classList.toggle("later", this.reached !== null && i > at);
    });
  }

  key(event, i) {
    const last = this.words.length - 1;
    const to = {
      ArrowRight: i + 1,
      ArrowDown: i + 1,
      ArrowLeft: i - 1,
      ArrowUp: i - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.pause();
    const next = Math.min(Math.max(to, 0), last);
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
    const panels = [[null, ""], ...this.words.map((word, i) => [this.maps[i], word])];
    const across = Math.min(ACROSS, panels.length);
    const rows = Math.ceil(panels.length / across);
    const down = tall + 28;
    const root = s(
      "svg",
      {
        width: Math.max(across * (SAVED + 6), 7.6 * this.title.length, 320),
        height: 26 + rows * down + 36,
      },
      s("text", { y: 14, fill: tint("ink"), "font-size": 14, "font-weight": 600 }, this.title),
    );
    panels.forEach(([map, word], i) => {
      const x = (i % across) * (SAVED + 6);
      const y = 26 + Math.floor(i / across) * down;
      const canvas = h("canvas", { width: 2 * SAVED, height: Math.round(2 * tall) });
      const c = canvas.getContext("2d");
      if (map) light(c, this.image, map, this.range, canvas.width, canvas.height);
      else c.drawImage(this.image, 0, 0, canvas.width, canvas.height);
      root.append(
        s("image", {
          href: canvas.toDataURL(),
          x,
          y,
          width: SAVED,
          height: tall,
          preserveAspectRatio: "none",
        }),
        s(
          "text",
          {
            x: x + SAVED / 2,
            y: y + tall + 16,
            "text-anchor": "middle",
            "font-size": 13,
            fill: tint("ink"),
          },
          word,
        ),
      );
    });
    root.append(
      scaleBar({
        x: 0,
        y: 26 + rows * down + 6,
        low: number(this.range[0]),
        high: number(this.range[1]),
        label: `${this.what}, one scale for all words`,
        shade,
      }),
    );
    return root;
  }
}
