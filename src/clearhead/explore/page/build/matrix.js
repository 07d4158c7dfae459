/**
 * A small matrix as a table of numbers and colours: editable if `change` is given, otherwise a grid
 * that the arrow keys move through.
 */

import { colour, css, ink, tint } from "../colours.js";
import { ARROWS, h, modified, s, themed } from "../dom.js";
import { clamp } from "../numbers.js";
import { shown } from "./arithmetic.js";

const STRONGEST = 0.45; // of the colour scale: on all of it the text is readable
const LARGEST = 1e6; // a number that may be typed
const SIZE = { wide: 52, tall: 24, gap: 8, font: 12 }; // of a cell of the SVG

export class Matrix {
  // change: called with all values after an edit; point: called with [row, column] under the
  // pointer or the focus (and whether it is the focus), or null
  // most: the number with the strongest colour; the largest one if not given
  constructor({ change = null, point = null, most = null }) {
    Object.assign(this, { change, point, most, values: [], at: [0, 0] });
    Object.assign(this, { rows: null, columns: null, masked: null, heads: 1 });
    this.caption = h("figcaption");
    this.table = h("table", { class: "matrix", role: change ? null : "grid" });
    this.problem = change ? h("p", { class: "note wrong", role: "alert", hidden: true }) : null;
    this.root = h(
      "figure",
      { class: "matrixbox" },
      this.caption,
      h("div", { class: "scroll" }, this.table),
      this.problem,
    );
    this.table.addEventListener("pointerover", (event) => {
      const at = this.place(event.target);
      if (at) this.point?.(at, false);
    });
    this.table.addEventListener("focusin", (event) => {
      const at = this.place(event.target);
      if (at) {
        this.rove(at);
        this.point?.(at, true);
      }
    });
    this.table.addEventListener("focusout", (event) => {
      if (this.place(event.target)) this.point?.(null, true);
    });
    this.table.addEventListener("keydown", (event) => this.key(event));
    themed(this, "paint");
  }

  // rows, columns: names; heads: groups of columns; masked: booleans, true where a number is
  // masked; text: what to write for (number, masked)
  // repeated: the names of the rows stand at a matrix to the left, and are shown only if there is
  // no room beside it
  show(
    values,
    {
      name,
      about,
      rows = null,
      columns = null,
      heads = 1,
      masked = null,
      text = shown,
      repeated = false,
    },
  ) {
    const sizes = (m, ...names) =>
      [m.length, m[0]?.length, ...names.map((list) => list?.length ?? 0)].join();
    const same = this.values.length &&
      sizes(values, rows, columns) === sizes(this.values, this.rows, this.columns) &&
      heads === this.heads;
    Object.assign(this, { values, name, about, rows, columns, heads, masked, text });
    this.caption.replaceChildren(h("b", {}, name), " ", h("span", {}, about));
    this.root.classList.toggle("repeated", repeated);
    this.table.setAttribute("aria-label", `${name}: ${about}`);
    if (!same) this.draw();
    this.names();
    this.paint();
  }

  draw() {
    this.at = [
      Math.min(this.at[0], this.values.length - 1),
      Math.min(this.at[1], this.values[0].length - 1),
    ];
    const each = this.values[0].length / this.heads;
    const lead = this.rows ? h("td", {}) : null;
    this.inner = this.values.map((row, i) =>
      row.map((_, j) => (this.change ? this.input(i, j) : h("span", {})))
    );
    this.cells = this.inner.map((row, i) =>
      row.map((inner, j) =>
        h(
          "td",
          {
            class: j && j % each === 0 ? "first" : null,
            "data-at": `${i},${j}`,
            tabindex: this.change ? null : -1,
          },
          inner,
        )
      )
    );
    this.heading = this.rows?.map(() => h("th", { scope: "row" })) ?? [];
    this.top = this.columns?.map(() => h("th", { scope: "col" })) ?? [];
    const body = this.cells.map((row, i) => h("tr", {}, this.heading[i] ?? null, row));
    const parts = [h("tbody", {}, body)];
    if (this.columns) parts.unshift(h("thead", {}, h("tr", {}, lead, this.top)));
    if (this.heads > 1) {
      const heads = Array.from({ length: this.heads }, (_, head) => {
        const more = { scope: "colgroup", colspan: each, class: head ? "first" : null };
        return h("th", more, `head ${head}`);
      });
      parts.unshift(h("thead", {}, h("tr", {}, lead?.cloneNode(), heads)));
    }
    this.table.replaceChildren(...parts);
    this.rove(this.at);
  }

  names() {
    for (
      const [nodes, texts] of [
        [this.heading, this.rows],
        [this.top, this.columns],
      ]
    ) {
      nodes.forEach((node, i) => {
        node.textContent = node.title = texts[i];
      });
    }
    if (this.change) {
      this.inner.forEach((row, i) =>
        row.forEach((node, j) =>
          node.setAttribute("aria-label", `${this.name} row ${i + 1}, column ${j + 1}`)
        )
      );
    }
  }

  input(i, j) {
    let before = 0; // the number before the edit
    const node = h("input", {
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      onfocus: () => {
        before = this.values[i][j];
        node.value = String(before);
        node.select();
      },
      oninput: () => {
        const value = Number(node.value.replace(",", ".").replace("−", "-"));
        const fine = node.value.trim() !== "" && Math.abs(value) <= LARGEST;
        this.right(node, fine);
        this.problem.hidden = true;
        if (fine) {
          this.values[i][j] = value;
          this.paint();
          this.change(this.values);
        }
      },
      onblur: () => {
        if (node.classList.contains("wrong")) {
          const largest = LARGEST.toLocaleString("en");
          const range = `a number from −${largest} to ${largest}`;
          const kept = `the cell keeps ${shown(before)}`;
          this.problem.textContent = `“${node.value}” is not ${range}: ${kept}.`;
          this.problem.hidden = false;
          this.values[i][j] = before;
          this.change(this.values);
        }
        this.right(node, true);
        this.paint();
      },
    });
    return node;
  }

  right(node, fine) {
    node.classList.toggle("wrong", !fine);
    node.setAttribute("aria-invalid", String(!fine));
  }

  place(node) {
    return node.closest("td[data-at]")?.dataset.at.split(",").map(Number) ?? null;
  }

  // One cell of the matrix can be reached with Tab.
  rove(at) {
    const stop = ([i, j], index) => {
      const cell = this.change ? this.inner[i][j] : this.cells[i][j];
      cell.tabIndex = index;
      return cell;
    };
    if (this.change) {
      for (const node of this.inner.flat()) node.tabIndex = -1;
    } else {
      stop(this.at, -1);
    }
    this.at = at;
    return stop(at, 0);
  }

  key(event) {
    const at = this.place(event.target);
    const node = event.target;
    if (!at || modified(event) || event.altKey) return;
    const last = this.values[0].length - 1;
    const moves = { ...ARROWS, Home: [0, -at[1]], End: [0, last - at[1]], Enter: [1, 0] };
    const [dy, dx] = moves[event.key] ?? [0, 0];
    if (!dy && !dx) return;
    if (this.change && dx) {
      // the caret moves through the digits first
      const all = node.selectionStart === 0 && node.selectionEnd === node.value.length;
      const edge = dx < 0 ? node.selectionEnd === 0 : node.selectionStart === node.value.length;
      if (/Home|End/.test(event.key) || !(all || edge)) return;
    }
    const i = clamp(at[0] + dy, 0, this.values.length - 1);
    const j = clamp(at[1] + dx, 0, last);
    event.preventDefault();
    (this.change ? this.inner : this.cells)[i][j].focus();
  }

  // Mark cells: [row, column] each, null for all; here: the cell that is explained
  mark(list, here = null) {
    const test = (i, j) =>
      list.some(
        ([row, column]) => (row === null || row === i) && (column === null || column === j),
      );
    this.cells?.forEach((row, i) =>
      row.forEach((cell, j) => {
        cell.classList.toggle("lit", test(i, j));
        cell.classList.toggle("here", here !== null && here[0] === i && here[1] === j);
      })
    );
  }

  // The colour of a number, by the largest one that is not masked.
  fill(x, i, j) {
    if (this.masked?.[i][j]) return colour(0);
    const seen = this.values.flatMap((row, a) => row.filter((_, b) => !this.masked?.[a][b]));
    const most = this.most ?? (Math.max(...seen.map(Math.abs)) || 1);
    return colour(Math.sign(x) * STRONGEST * Math.min(Math.abs(x) / most, 1));
  }

  paint() {
    this.inner?.forEach((row, i) =>
      row.forEach((node, j) => {
        const x = this.values[i][j];
        const masked = this.masked?.[i][j] ?? false;
        const fill = this.fill(x, i, j);
        if (!this.change) node.textContent = this.text(x, masked);
        else if (node !== document.activeElement) node.value = this.text(x, false);
        node.classList.toggle("masked", masked);
        node.style.setProperty("background-color", css(fill));
        node.style.setProperty("color", ink(fill));
      })
    );
  }

  svg() {
    const { wide, tall, gap, font } = SIZE;
    const count = this.values[0]?.length ?? 0;
    const each = count / this.heads;
    const top = 38 + (this.columns ? 16 : 0) + (this.heads > 1 ? 18 : 0);
    const longest = Math.max(0, ...(this.rows ?? []).map((name) => Math.min(name.length, 16)));
    const left = this.rows ? 12 + 6.5 * longest : 4;
    const x = (j) => left + j * wide + gap * Math.floor(j / each);
    const text = (fill, more, words) => s("text", { fill, "font-size": font, ...more }, words);
    const root = s("svg", {
      width: Math.ceil(Math.max(x(count - 1) + wide, 8 + 6.4 * this.about.length)),
      height: top + 4 + this.values.length * tall,
    });
    root.append(
      text(tint("ink"), { x: 4, y: 14, "font-size": 14, "font-weight": 600 }, this.name),
      text(tint("soft"), { x: 4, y: 30 }, this.about),
    );
    const id = `hatch${Math.random().toString(36).slice(2)}`; // several matrices are on one sheet
    root.append(s("defs", {}, hatching(id)));
    const middle = { "text-anchor": "middle" };
    for (let head = 0; this.heads > 1 && head < this.heads; head++) {
      const place = { x: x(head * each) + (each * wide) / 2, y: 50 };
      root.append(text(tint("soft"), { ...place, ...middle }, `head ${head}`));
    }
    this.columns?.forEach((name, j) => {
      const place = { x: x(j) + wide / 2, y: top - 6, "font-size": 11 };
      root.append(text(tint("soft"), { ...place, ...middle }, name.slice(0, 8)));
    });
    this.values.forEach((row, i) => {
      const y = top + i * tall;
      const place = { x: left - 6, y: y + 16, "text-anchor": "end" };
      if (this.rows) root.append(text(tint("soft"), place, this.rows[i].slice(0, 16)));
      row.forEach((value, j) => {
        const fill = this.fill(value, i, j);
        const masked = this.masked?.[i][j] ?? false;
        const box = { x: x(j), y, width: wide - 2, height: tall - 2, rx: 3 };
        const number = { x: x(j) + wide / 2 - 1, y: y + 15, ...middle };
        root.append(s("rect", { ...box, fill: css(fill) }));
        if (masked) root.append(s("rect", { ...box, fill: `url(#${id})` }));
        root.append(text(ink(fill), number, this.text(value, masked)));
      });
    });
    return root;
  }
}

// The pattern of masked cells.
function hatching(id) {
  const size = { width: 6, height: 6 };
  const turned = { patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const stripe = s("rect", { width: 2, height: 6, fill: tint("hair") });
  return s("pattern", { id, ...size, ...turned }, stripe);
}
