/** A grid of small pictures, one per channel of a stage of a network; a channel can be chosen. */

import { colour, css, tint } from "./colours.js";
import { h, number, s, saver, themed } from "./dom.js";
import { scaleBar } from "./figure.js";

export const PER_PAGE = 48; // channels that are shown at a time
const CELL = 56;
const ACROSS = 8; // of the SVG: pixels of a map, and maps per row

export class FeatureGrid {
  // pick: called with the chosen channel; turn: with the number of another page
  constructor({ pick, turn }) {
    Object.assign(this, { pick, turn, maps: null, channels: [], at: null });
    this.grid = h("div", { class: "features", role: "listbox", "aria-label": "Feature maps" });
    this.legend = h("p", { class: "legend" });
    this.before = h(
      "button",
      { type: "button", "aria-label": "Earlier channels", onclick: () => this.turn(this.page - 1) },
      "←",
    );
    this.after = h(
      "button",
      { type: "button", "aria-label": "Further channels", onclick: () => this.turn(this.page + 1) },
      "→",
    );
    this.where = h("span", {});
    this.pages = h(
      "div",
      { class: "pages" },
      this.before,
      this.where,
      this.after,
      saver(() => this.svg()),
    );
    this.root = h("div", { class: "featurebox", hidden: true }, this.grid, this.legend, this.pages);
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

  // The numbers of one channel as rows.
  rows(channel) {
    const [, ny, nx] = this.maps.shape;
    const from = this.channels.indexOf(channel) * ny * nx;
    return Array.from(
      { length: ny },
      (_, y) => Array.from(this.maps.data.subarray(from + y * nx, from + (y + 1) * nx)),
    );
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
    const [, ny, nx] = this.maps.shape;
    const node = h("canvas", { width: nx, height: ny, "aria-hidden": "true" });
    const c = node.getContext("2d");
    const image = c.createImageData(nx, ny);
    const { most } = this;
    this.rows(channel)
      .flat()
      .forEach((x, i) =>
        image.data.set([...colour(Math.sign(x) * Math.sqrt(Math.abs(x) / most)), 255], 4 * i)
      );
    c.putImageData(image, 0, 0);
    return node;
  }

  draw() {
    if (!this.maps) return;
    const focused = this.grid.contains(document.activeElement)
      ? document.activeElement.dataset.channel
      : null;
    const { most, signed } = this;
    this.grid.replaceChildren(
      ...this.channels.map((channel) => {
        const name = `channel ${channel}, largest value ${
          number(
            this.rows(channel)
              .flat()
              .reduce((a, x) => Math.max(a, x), -Infinity),
          )
        }`;
        return h(
          "button",
          {
            type: "button",
            role: "option",
            "data-channel": channel,
            title: name,
            "aria-label": name,
            "aria-selected": channel === this.at,
            tabindex: channel === this.at ||
                (!this.channels.includes(this.at) && channel === this.channels[0])
              ? 0
              : -1,
            onclick: () => this.choose(channel),
            onkeydown: (event) => this.key(event, channel),
          },
          this.canvas(channel),
        );
      }),
    );
    if (focused !== null) this.grid.querySelector(`[data-channel="${focused}"]`)?.focus();
    const bar = h("span", { class: "bar" });
    const low = signed ? -1 : 0;
    bar.style.setProperty(
      "background",
      `linear-gradient(90deg, ${
        Array.from({ length: 9 }, (_, i) => css(colour(low + (i / 8) * (1 - low)))).join(",")
      })`,
    );
    this.legend.replaceChildren(
      h("span", { class: "ends" }, number(low * most), bar, `${number(most)} activation`),
      "(colours: square root)",
    );
    this.where.textContent = this.of > PER_PAGE
      ? `${this.page * PER_PAGE + 1} to ${
        this.page * PER_PAGE + this.channels.length
      } of ${this.of} channels`
      : `${this.of} channels`;
    this.before.hidden = this.after.hidden = this.of <= PER_PAGE;
    this.before.disabled = this.page === 0;
    this.after.disabled = (this.page + 1) * PER_PAGE >= this.of;
  }

  key(event, channel) {
    const wide = Math.max(
      1,
      Math.round(this.grid.clientWidth / ((this.grid.firstChild?.offsetWidth ?? CELL) + 4)),
    );
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -wide, ArrowDown: wide }[event.key];
    const to = this.channels[this.channels.indexOf(channel) + by];
    if (!by) return;
    event.preventDefault();
    if (to === undefined) return;
    this.choose(to);
    this.grid.querySelector(`[data-channel="${to}"]`)?.focus();
  }

  svg() {
    if (!this.maps) return null;
    const [, ny, nx] = this.maps.shape;
    const tall = Math.round((CELL * ny) / nx);
    const rows = Math.ceil(this.channels.length / ACROSS);
    const { most, signed } = this;
    const root = s(
      "svg",
      {
        width: ACROSS * (CELL + 4),
        height: 26 + rows * (tall + 16) + 40,
        "font-size": 10,
        fill: tint("soft"),
      },
      s(
        "text",
        { y: 14, "font-size": 14, "font-weight": 600, fill: tint("ink") },
        `Feature maps, ${this.title}`,
      ),
    );
    this.channels.forEach((channel, i) => {
      const x = (i % ACROSS) * (CELL + 4);
      const y = 26 + Math.floor(i / ACROSS) * (tall + 16);
      root.append(
        s("image", {
          x,
          y,
          width: CELL,
          height: tall,
          href: this.canvas(channel).toDataURL(),
          preserveAspectRatio: "none",
          "image-rendering": "pixelated",
        }),
        s("rect", {
          x,
          y,
          width: CELL,
          height: tall,
          fill: "none",
          stroke: tint(channel === this.at ? "accent" : "hair"),
          "stroke-width": channel === this.at ? 2.5 : 1,
        }),
        s("text", { x, y: y + tall + 11 }, channel),
      );
    });
    root.append(
      scaleBar({
        x: 0,
        y: 26 + rows * (tall + 16) + 8,
        low: number(signed ? -most : 0),
        high: number(most),
        label: "activation",
        signed,
        root: true,
      }),
    );
    return root;
  }
}
