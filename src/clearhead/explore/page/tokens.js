// Tokens: two rows of tokens with lines between them (TokenLines), and a text with shaded tokens (TokenText).

import { colour, css, ink, tint } from "./colours.js";
import { h, percent, s, themed, visible } from "./dom.js";

const measure = document.createElement("canvas").getContext("2d");
const FONT = 15, GAP = 8, ROOM = 26;

// Lines from each query token (below) to the keys it attends to (above); two columns where the width is too small.
export class TokenLines {
  constructor({ label = ["read", "written"], point = null } = {}) {
    Object.assign(this, { label, point });
    this.svgNode = s("svg", { class: "lines", role: "group" });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.root = h("div", { class: "linebox" }, this.svgNode, this.note);
    this.at = null;
    new ResizeObserver(() => { if (this.wide !== this.root.clientWidth) this.draw(); }).observe(this.root);
    themed(this, "draw");
  }

  show({ above, below, weights }) {
    Object.assign(this, { above, below, weights, at: null });
    this.draw();
  }

  // at: ["below", i] or ["above", j]
  focus(at, tell = true) {
    if (String(at) === String(this.at)) return;
    this.at = at;
    this.paint();
    if (tell) this.point?.(at);
  }

  draw() {
    if (!this.above || !this.root.isConnected) return;
    this.wide = this.root.clientWidth;
    measure.font = `${FONT}px system-ui, sans-serif`;
    const width = (text) => measure.measureText(visible(text).trim() || "␣").width + 14;
    const bare = (list) => list.reduce((sum, text) => sum + width(text), 0), longest = Math.max(this.above.length, this.below.length);
    const gap = Math.min(Math.max((Math.min(this.wide, 900) - Math.max(bare(this.above), bare(this.below))) / longest, GAP), 34);
    const total = (list) => bare(list) + gap * list.length;
    const across = Math.max(total(this.above), total(this.below)) <= this.wide;
    const places = (list, side) => {
      let x = across ? (this.wide - total(list)) / 2 : 0;
      return list.map((text, i) => {
        const w = width(text);
        const place = across ? { x: x + gap / 2, y: side ? 150 : 4, w, h: ROOM } : { x: side ? Math.min(this.wide - 4, 460) - Math.min(w, this.wide * 0.4) : 4, y: 4 + i * (ROOM + 4), w: Math.min(w, this.wide * 0.4), h: ROOM };
        x += w + gap;
        return { ...place, text };
      });
    };
    this.tops = places(this.above, 0);
    this.lows = places(this.below, 1);
    this.across = across;
    const tall = across ? 150 + ROOM + 6 : Math.max(this.above.length, this.below.length) * (ROOM + 4) + 6;
    for (const [name, value] of Object.entries({ width: this.wide, height: tall, viewBox: `0 0 ${this.wide} ${tall}` })) this.svgNode.setAttribute(name, value);
    this.paths = [];
    const lines = s("g", { fill: "none", "stroke-linecap": "round" });
    this.weights.forEach((row, i) => row.forEach((weight, j) => {
      if (weight < Math.min(0.02, 0.3 * Math.max(...row)) || weight <= 0) return;
      const a = this.tops[j], b = this.lows[i];
      const d = across
        ? curve(a.x + a.w / 2, a.y + a.h, b.x + b.w / 2, b.y, true)
        : curve(a.x + a.w, a.y + a.h / 2, b.x, b.y + b.h / 2, false);
      const path = s("path", { d });
      this.paths.push({ path, i, j, weight });
      lines.append(path);
    }));
    const words = s("g");
    this.boxes = [];
    for (const [side, list] of [["above", this.tops], ["below", this.lows]]) {
      list.forEach((place, i) => {
        const rect = s("rect", { x: place.x, y: place.y, width: place.w, height: place.h, rx: 6 });
        const text = s("text", { x: place.x + place.w / 2, y: place.y + 18, "text-anchor": "middle", "font-size": FONT }, visible(place.text).trim() || "␣");
        const token = s("g", { class: "token", tabindex: i === 0 ? 0 : -1, role: "button", "aria-label": `${side === "above" ? this.label[0] : this.label[1]} ${i + 1}: ${place.text.trim()}`,
          onpointerenter: () => this.focus([side, i]), onpointerleave: () => this.focus(null), onfocus: () => this.focus([side, i]), onblur: () => this.focus(null),
          onkeydown: (event) => this.key(event, side, i) }, rect, text);
        this.boxes.push({ side, i, rect, text, token });
        words.append(token);
      });
    }
    this.svgNode.replaceChildren(lines, words);
    this.paint();
  }

  key(event, side, i) {
    const list = side === "above" ? this.above : this.below;
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    let next = null;
    if (this.across && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      const other = event.key === "ArrowUp" ? "above" : "below";
      next = [other, Math.min(i, (other === "above" ? this.above : this.below).length - 1)];
    } else if (by) next = [side, Math.min(Math.max(i + by, 0), list.length - 1)];
    if (!next) return;
    event.preventDefault();
    this.boxes.find((one) => one.side === next[0] && one.i === next[1])?.token.focus();
  }

  paint() {
    if (!this.paths) return;
    const [side, at] = this.at ?? [null, null];
    const mine = ({ i, j }) => side === null || (side === "below" ? i === at : j === at);
    for (const one of this.paths) {
      const lit = mine(one);
      one.path.setAttribute("stroke", lit ? tint("accent") : tint("hair"));
      one.path.setAttribute("stroke-width", (0.7 + 7 * one.weight).toFixed(2));
      one.path.setAttribute("opacity", lit ? (0.1 + 0.9 * one.weight ** 0.7).toFixed(3) : 0.25);
    }
    const share = (box) => {
      if (side === null || box.side === side) return box.side === side && box.i === at ? 1 : 0;
      return side === "below" ? this.weights[at]?.[box.i] ?? 0 : this.weights[box.i]?.[at] ?? 0;
    };
    for (const box of this.boxes) {
      const x = share(box), own = box.side === side && box.i === at;
      const fill = own ? tint("accent") : x > 0.005 ? css(colour(x)) : tint("well");
      box.rect.setAttribute("fill", fill);
      box.text.setAttribute("fill", own ? tint("paper") : x > 0.005 ? ink(colour(x)) : tint("ink"));
    }
    this.tell(side, at);
  }

  tell(side, at) {
    if (side === null) { this.note.textContent = " "; return; }
    const all = side === "below" ? this.weights[at] ?? [] : this.weights.map((row) => row[at]);
    const names = side === "below" ? this.above : this.below;
    const best = all.map((weight, i) => [weight, names[i]]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    const own = (side === "below" ? this.below : this.above)[at] ?? "";
    const said = best.map(([weight, name]) => `${visible(name ?? "").trim()} ${percent(weight)}`).join(", ");
    this.note.textContent = side === "below" ? `${visible(own).trim()} attends to ${said}` : `${visible(own).trim()} is attended to by ${said}`;
  }

  svg() {
    if (!this.paths) return null;
    const root = this.svgNode.cloneNode(true);
    for (const node of root.querySelectorAll("[tabindex]")) { node.removeAttribute("tabindex"); node.removeAttribute("class"); }
    return root;
  }
}

function curve(x0, y0, x1, y1, across) {
  return across ? `M${x0},${y0}C${x0},${(y0 + y1) / 2} ${x1},${(y0 + y1) / 2} ${x1},${y1}` : `M${x0},${y0}C${(x0 + x1) / 2},${y0} ${(x0 + x1) / 2},${y1} ${x1},${y1}`;
}

// A text with each token shaded by its attention weight; a long text is shown in pages.
export class TokenText {
  constructor({ point = null, pick = null, page = 400 } = {}) {
    Object.assign(this, { point, pick, page, first: 0, tokens: [], picked: null });
    this.flow = h("div", { class: "flow", role: "group", "aria-label": "The text, token by token" });
    this.turner = h("div", { class: "pages", hidden: true });
    this.root = h("div", {}, this.flow, this.turner);
    themed(this, "shade");
  }

  show(tokens, { from = tokens.length, first = null } = {}) {
    Object.assign(this, { tokens, from, shares: null });
    if (first !== null) this.first = first;
    if (this.first >= tokens.length) this.first = 0;
    this.draw();
  }

  append(token) {
    this.tokens.push(token);
    if (this.tokens.length - this.first > this.page) return;
    this.flow.append(this.token(this.tokens.length - 1));
    this.flow.scrollTop = this.flow.scrollHeight;
  }

  // Mark the token that the rest of the view describes; `see` scrolls or pages to it.
  choose(at, see = false) {
    this.picked = at;
    if (see && at !== null && (at < this.first || at >= this.first + this.page)) { this.first = Math.floor(at / this.page) * this.page; this.draw(); return; }
    for (const node of this.flow.children) {
      const own = Number(node.dataset.at) === at;
      node.classList.toggle("picked", own);
      node.tabIndex = own ? 0 : -1;
      if (own) this.scroll(node);
    }
    if (this.flow.firstChild && !this.flow.querySelector(".picked")) this.flow.firstChild.tabIndex = 0;
  }

  // Scrolls the text within its own box; the page does not move.
  scroll(node) {
    const top = node.offsetTop - this.flow.offsetTop, over = top + node.offsetHeight - this.flow.clientHeight;
    this.flow.scrollTop = Math.min(Math.max(this.flow.scrollTop, over), top);
  }

  draw() {
    const last = Math.min(this.first + this.page, this.tokens.length);
    this.flow.replaceChildren(...Array.from({ length: last - this.first }, (_, i) => this.token(this.first + i)));
    this.turner.hidden = this.tokens.length <= this.page;
    const turn = (by) => { this.first = Math.min(Math.max(0, this.first + by), Math.floor((this.tokens.length - 1) / this.page) * this.page); this.draw(); };
    this.turner.replaceChildren(
      h("button", { type: "button", disabled: this.first === 0, onclick: () => turn(-this.page) }, "earlier"),
      h("span", {}, `tokens ${(this.first + 1).toLocaleString()} to ${last.toLocaleString()} of ${this.tokens.length.toLocaleString()}`),
      h("button", { type: "button", disabled: last === this.tokens.length, onclick: () => turn(this.page) }, "later"));
    this.choose(this.picked);
    this.shade(this.shares);
  }

  token(i) {
    const piece = this.tokens[i];
    const go = (by) => { const next = this.flow.querySelector(`[data-at="${i + by}"]`); if (next) { next.focus(); this.pick?.(i + by); } };
    return h("span", { class: `piece${i >= this.from ? " new" : ""}`, "data-at": i, tabindex: -1, role: "button",
      onpointerenter: () => this.point?.(i), onpointerleave: () => this.point?.(null), onclick: () => this.pick?.(i),
      onkeydown: (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (by) { event.preventDefault(); go(by); } else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.pick?.(i); }
      } }, piece === "\n" ? "⏎\n" : piece);
  }

  // shares: for each token, the attention weight that the chosen token gives it
  shade(shares = this.shares) {
    this.shares = shares;
    for (const node of this.flow.children) {
      const x = shares?.[Number(node.dataset.at)] ?? 0;
      if (x > 0.002) {
        const fill = colour(Math.sqrt(x) * 0.9);
        node.style.setProperty("background-color", css(fill));
        node.style.setProperty("color", ink(fill));
      } else { node.style.removeProperty("background-color"); node.style.removeProperty("color"); }
    }
  }
}
