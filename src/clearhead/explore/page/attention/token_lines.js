/** Two rows of tokens with lines between them. */

import { colour, css, ink, tint } from "../colours.js";
import { ARROWS, h, s, themed } from "../dom.js";
import { heading } from "../figures/sheet.js";
import { clamp, percent, spread, total, visible } from "../numbers.js";

const FONT = 15; // pixels of the text
const GAP = 8; // least pixels between tokens
const ROOM = 26; // height of a token
const LONGEST = 150; // width of the longest token
const TOP = 18; // y of the upper row
const LOW = 150; // y of the lower row
const COLUMNS = 460; // width of two columns, where rows do not fit
const MANY = 24; // more tokens than these: only the lines of one token are drawn
const OTHERS = 110; // pixels of a token that stands for others
const RTL = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

const measure = document.createElement("canvas").getContext("2d");
const useFont = () => {
  measure.font = `${FONT}px system-ui, sans-serif`;
};
const bare = (text) => visible(text).trim() || "␣";

/**
 * Lines from each query token (below) to the keys it attends to (above); two columns where the
 * width is too small.
 */
export class TokenLines {
  // label: what the rows are, keys first; point: called with the token under the pointer; pick:
  // with a clicked one
  constructor({ label = ["keys", "queries"], point = null, pick = null } = {}) {
    Object.assign(this, { label, point, pick, at: null, chosen: null });
    this.svgNode = s("svg", {
      class: "lines",
      role: "group",
      "aria-label": "Attention between tokens",
    });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.box = h("div", { class: "linebox", tabindex: -1 }, this.svgNode);
    this.root = h("div", { class: "tokenlines" }, this.box, this.note);
    new ResizeObserver(() => {
      if (this.wide !== this.root.clientWidth) this.draw();
    }).observe(this.root);
    themed(this, "draw");
  }

  // special: sets of special tokens, of the keys and of the queries; chosen: a query whose lines
  // are drawn by default
  show({
    above,
    below,
    weights,
    label = this.label,
    special = [new Set(), new Set()],
    chosen = null,
  }) {
    Object.assign(this, { above, below, weights, label, special, chosen, at: null });
    if (chosen === null && this.many()) this.chosen = below.findIndex((_, i) => !special[1].has(i));
    this.draw();
  }

  clear() {
    this.above = this.below = this.paths = null;
    this.svgNode.replaceChildren();
    this.svgNode.setAttribute("height", 0);
    this.note.textContent = " ";
  }

  // The range of tokens around `at` that fit into one row, up to three of them after it; all if
  // they fit.
  fitting(names, at) {
    useFont();
    const room = this.root.clientWidth || 600;
    const wide = (i) => Math.min(measure.measureText(bare(names[i])).width, LONGEST) + 14 + GAP;
    const all = (first, last) => total(names.slice(first, last).map((_, i) => wide(first + i)));
    if (names.length <= MANY && all(0, names.length) <= room) return [0, names.length];
    const last = Math.min(names.length, at + 4);
    let first = at;
    let used = all(at, last) + OTHERS;
    while (first > 0 && used + wide(first - 1) <= room) {
      first -= 1;
      used += wide(first);
    }
    return [first, last];
  }

  many() {
    return Math.max(this.above.length, this.below.length) > MANY;
  }

  // at: ["below", i] or ["above", j]
  focus(at, tell = true) {
    if (String(at) === String(this.at)) return;
    this.at = at;
    this.paint();
    if (tell) this.point?.(at);
  }

  choose(i) {
    this.chosen = i;
    this.paint();
  }

  // Each row of tokens as places { x, y, w, h, text, full }: beside each other if both rows fit,
  // else in two columns.
  layout() {
    const longest = Math.min(LONGEST, 0.4 * this.wide);
    const sized = (name) => {
      const full = bare(name);
      const text = fitted(full, longest - 14);
      return { full, text, w: measure.measureText(text).width + 14 };
    };
    const rows = [this.above.map(sized), this.below.map(sized)];
    const sum = (row) => total(row.map(({ w }) => w));
    const room = Math.min(this.wide, 900) - Math.max(...rows.map(sum));
    const many = Math.max(...rows.map((row) => row.length));
    const gap = clamp(room / many, GAP, 34);
    const wide = (row) => sum(row) + gap * row.length;
    this.across = Math.max(...rows.map(wide)) <= this.wide;
    if (!this.across) return rows.map((row, side) => this.column(row, side));
    return rows.map((row, side) => inRow(row, gap, (this.wide - wide(row)) / 2, this.wide, side));
  }

  column(row, side) {
    const right = Math.min(this.wide - 4, COLUMNS);
    return row.map((token, i) => {
      const x = side ? right - token.w : 4;
      return { ...token, x, y: TOP + i * (ROOM + 4), h: ROOM };
    });
  }

  draw() {
    if (!this.above || !this.root.isConnected) return;
    this.wide = this.root.clientWidth;
    if (!this.wide) return;
    useFont();
    [this.tops, this.lows] = this.layout();
    const { across, wide } = this;
    const many = Math.max(this.above.length, this.below.length);
    const tall = across ? LOW + ROOM + 20 : TOP + many * (ROOM + 4) + 6;
    const size = { width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}` };
    for (const [name, value] of Object.entries(size)) this.svgNode.setAttribute(name, value);
    this.drawPaths();
    this.boxes = [
      ...this.tops.map((place, i) => this.tokenBox("above", i, place)),
      ...this.lows.map((place, i) => this.tokenBox("below", i, place)),
    ];
    const words = s(
      "g",
      {},
      this.boxes.map(({ token }) => token),
    );
    const lines = s(
      "g",
      { fill: "none", "stroke-linecap": "round" },
      this.paths.map(({ path }) => path),
    );
    this.svgNode.replaceChildren(lines, words, this.rowNames());
    this.paint();
  }

  drawPaths() {
    this.paths = [];
    this.weights.forEach((row, i) => {
      // weights that would not be seen have no line
      const least = Math.min(0.02, 0.3 * Math.max(0, spread(row)[1]));
      row.forEach((weight, j) => {
        if (!(weight > 0) || weight < least) return;
        const path = s("path", { d: curve(this.tops[j], this.lows[i], this.across) });
        this.paths.push({ path, i, j, weight });
      });
    });
  }

  // One token: { side, i, rect, text, token }.
  tokenBox(side, i, place) {
    const rect = s("rect", { x: place.x, y: place.y, width: place.w, height: place.h, rx: 6 });
    const middle = { x: place.x + place.w / 2, y: place.y + 18, "text-anchor": "middle" };
    const text = s("text", { ...middle, "font-size": FONT }, place.text);
    const title = place.text === place.full ? null : s("title", {}, place.full);
    const what = this.label[side === "above" ? 0 : 1];
    const token = s(
      "g",
      {
        class: "token",
        tabindex: i === 0 ? 0 : -1,
        role: "button",
        "aria-label": `${what} ${i + 1}: ${place.full}`,
        onpointerenter: () => this.focus([side, i]),
        onpointerleave: () => this.focus(null),
        onfocus: () => this.focus([side, i]),
        onblur: () => this.focus(null),
        onclick: () => this.press(side, i),
        onkeydown: (event) => this.key(event, side, i),
      },
      rect,
      text,
      title,
    );
    return { side, i, rect, text, token };
  }

  // What the two rows are.
  rowNames() {
    const first = (row) => Math.max(0, Math.min(...row.map(({ x }) => x)));
    const [keys, queries] = this.label;
    const right = { x: Math.min(this.wide - 4, COLUMNS), y: 11, "text-anchor": "end" };
    const below = this.across ? { x: first(this.lows), y: LOW + ROOM + 15 } : right;
    return s(
      "g",
      { "font-size": 12, fill: tint("soft") },
      s("text", { x: this.across ? first(this.tops) : 4, y: 11 }, keys),
      s("text", below, queries),
    );
  }

  press(side, i) {
    if (side === "below") this.choose(i);
    this.pick?.(side, i);
  }

  key(event, side, i) {
    const press = event.key === "Enter" || event.key === " ";
    const next = this.neighbour(event.key, side, i);
    if (!press && !next) return;
    event.preventDefault();
    if (press) {
      this.press(side, i);
      return;
    }
    const [toSide, to] = next;
    this.boxes.find((box) => box.side === toSide && box.i === to)?.token.focus();
  }

  // The token that an arrow key leads to: in rows up and down change the row, in columns they go
  // through one.
  neighbour(key, side, i) {
    if (!ARROWS[key]) return null;
    const [down, right] = ARROWS[key];
    if (this.across && down) {
      const other = down < 0 ? "above" : "below";
      return [other, Math.min(i, this[other].length - 1)];
    }
    return [side, clamp(i + down + right, 0, this[side].length - 1)];
  }

  paint() {
    if (!this.paths) return;
    const chosen = this.chosen === null ? [null, null] : ["below", this.chosen];
    const [side, at] = this.at ?? chosen;
    const many = this.many();
    for (const { path, i, j, weight } of this.paths) {
      const lit = side === null || at === (side === "below" ? i : j);
      path.setAttribute("visibility", lit || !many ? "visible" : "hidden");
      path.setAttribute("stroke", tint(lit ? "accent" : "hair"));
      path.setAttribute("stroke-width", (0.7 + 7 * weight).toFixed(2));
      path.setAttribute("opacity", lit ? (0.1 + 0.9 * weight ** 0.7).toFixed(3) : 0.25);
    }
    for (const box of this.boxes) {
      const [fill, ink] = this.boxColours(box, side, at);
      box.rect.setAttribute("fill", fill);
      box.text.setAttribute("fill", ink);
    }
    this.tell(side, at);
  }

  // The colours of a token and its text: by the weight between it and the token in focus.
  boxColours(box, side, at) {
    if (box.side === side && box.i === at) return [tint("accent"), tint("paper")];
    let weight = 0;
    if (side === "below" && box.side === "above") weight = this.weights[at]?.[box.i] ?? 0;
    if (side === "above" && box.side === "below") weight = this.weights[box.i]?.[at] ?? 0;
    if (weight > 0.005) return [css(colour(weight)), ink(colour(weight))];
    const special = this.special[box.side === "above" ? 0 : 1].has(box.i);
    return [tint("well"), tint(special ? "soft" : "ink")];
  }

  // Name the three largest weights of a token.
  tell(side, at) {
    if (side === null) {
      this.note.textContent = " ";
      return;
    }
    const query = side === "below";
    const weights = query ? [...(this.weights[at] ?? [])] : this.weights.map((row) => row[at]);
    const names = query ? this.above : this.below;
    const best = weights
      .map((weight, i) => [weight, names[i]])
      .sort((a, b) => b[0] - a[0])
      .slice(0, 3)
      .filter(([weight]) => weight > 0);
    const said = best.map(([weight, name]) => `${bare(name ?? "")} (${percent(weight)})`);
    const verb = query ? "attends to" : "receives attention from";
    this.note.textContent = `${bare(this[side][at] ?? "")} ${verb} ${said.join(", ")}`;
  }

  svg(title = "") {
    if (!this.paths) return null;
    const root = this.svgNode.cloneNode(true);
    const tall = Number(root.getAttribute("height"));
    for (const node of [root, ...root.querySelectorAll("[tabindex]")]) {
      for (const name of ["tabindex", "class", "role"]) node.removeAttribute(name);
    }
    root.setAttribute("y", 24);
    const size = { width: this.across ? this.wide : COLUMNS + 10, height: tall + 24 };
    return s("svg", size, heading(title), root);
  }
}

// The tokens of a row from `start` on; where they are written from right to left, so is the row.
function inRow(row, gap, start, wide, side) {
  const reversed = row.filter(({ text }) => RTL.test(text)).length > row.length / 2;
  let x = reversed ? wide - start : start;
  return row.map((token) => {
    const step = token.w + gap;
    const left = reversed ? x - gap / 2 - token.w : x + gap / 2;
    x += reversed ? -step : step;
    return { ...token, x: left, y: side ? LOW : TOP, h: ROOM };
  });
}

/**
 * A text that is no wider than `most` pixels in the font of a canvas, with an ellipsis where it was
 * cut.
 */
export function fitted(text, most, canvas = measure) {
  if (canvas.measureText(text).width <= most) return text;
  const letters = [...text.replace(/…$/, "")];
  while (letters.length > 1 && canvas.measureText(`${letters.join("")}…`).width > most) {
    letters.pop();
  }
  return `${letters.join("")}…`;
}

// From the middle of a key (above, or on the left) to that of a query.
function curve(key, query, across) {
  if (across) {
    const [x0, y0] = [key.x + key.w / 2, key.y + key.h];
    const [x1, y1] = [query.x + query.w / 2, query.y];
    const middle = (y0 + y1) / 2;
    return `M${x0},${y0}C${x0},${middle} ${x1},${middle} ${x1},${y1}`;
  }
  const [x0, y0] = [key.x + key.w, key.y + key.h / 2];
  const [x1, y1] = [query.x, query.y + query.h / 2];
  const middle = (x0 + x1) / 2;
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}`;
}
