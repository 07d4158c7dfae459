// A small matrix shown as numbers and colours, editable if `change` is given.

import { colour, css, ink, tint } from "./colours.js";
import { h, number, s, themed } from "./dom.js";

export class Matrix {
  constructor({ name, about, change = null, point = null, rows = null, columns = null, most = null }) {
    Object.assign(this, { name, about, change, point, rowNames: rows, columnNames: columns, fixed: most, values: [], lit: null });
    this.table = h("table", { class: "matrix", "aria-label": `${name}: ${about}` });
    this.root = h("figure", { class: "matrixbox" }, h("figcaption", {}, h("b", {}, name), " ", h("span", {}, about)), h("div", { class: "scroll" }, this.table));
    themed(this, "paint");
  }

  show(values, { rows = this.rowNames, columns = this.columnNames } = {}) {
    const same = this.cells && values.length === this.values.length && values[0]?.length === this.values[0]?.length && String(rows) === String(this.rowNames);
    Object.assign(this, { values, rowNames: rows, columnNames: columns });
    if (!same) this.draw();
    this.paint();
  }

  draw() {
    this.cells = this.values.map((row, i) => row.map((_, j) => this.change ? this.input(i, j) : h("span", {})));
    this.table.replaceChildren(
      ...(this.columnNames ? [h("thead", {}, h("tr", {}, this.rowNames ? h("td", {}) : null, this.columnNames.map((name) => h("th", { scope: "col" }, name))))] : []),
      h("tbody", {}, this.cells.map((row, i) => h("tr", { onpointerenter: () => this.point?.(i), onpointerleave: () => this.point?.(null) },
        this.rowNames ? h("th", { scope: "row" }, this.rowNames[i]) : null, row.map((cell) => h("td", {}, cell))))));
  }

  input(i, j) {
    const node = h("input", { type: "text", inputmode: "decimal", "aria-label": `${this.name} row ${i + 1}, column ${j + 1}`, autocomplete: "off",
      oninput: () => {
        const value = Number(node.value.replace(",", ".").replace("−", "-"));
        const fine = node.value.trim() !== "" && Number.isFinite(value) && Math.abs(value) <= 1e6;
        node.classList.toggle("wrong", !fine);
        node.setAttribute("aria-invalid", String(!fine));
        if (fine) { this.values[i][j] = value; this.paint(node); this.change(this.values); }
      },
      onblur: () => this.paint(),
      onkeydown: (event) => {
        const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], Enter: [1, 0] }[event.key];
        if (move) { event.preventDefault(); this.cells[i + move[0]]?.[j + move[1]]?.focus(); }
      } });
    return node;
  }

  light(row) { this.lit = row; this.table.querySelectorAll("tbody tr").forEach((node, i) => node.classList.toggle("lit", i === row)); }

  paint(typing = null) {
    if (!this.cells) return;
    const most = this.fixed ?? (Math.max(...this.values.flat().map((x) => Math.abs(x ?? 0))) || 1);
    this.cells.forEach((row, i) => row.forEach((cell, j) => {
      const x = this.values[i][j];
      if (cell !== typing && cell !== document.activeElement) { if (this.change) { cell.value = number(x); cell.classList.remove("wrong"); } else cell.textContent = number(x); }
      const fill = colour(x === null ? 0 : Math.sign(x) * 0.8 * Math.min(Math.abs(x) / most, 1));
      cell.style.setProperty("background-color", css(fill));
      cell.style.setProperty("color", ink(fill));
    }));
  }

  svg() {
    const size = 46, tall = 24, top = this.columnNames ? 38 : 22, left = this.rowNames ? 90 : 4, rows = this.values.length, columns = this.values[0]?.length ?? 0;
    const most = this.fixed ?? (Math.max(...this.values.flat().map((x) => Math.abs(x ?? 0))) || 1);
    const root = s("svg", { width: left + columns * size + 8, height: top + 8 + rows * tall, "font-size": 12 });
    root.append(s("text", { x: 4, y: 14, fill: tint("ink"), "font-size": 13 }, `${this.name}  ${this.about}`));
    this.columnNames?.forEach((name, j) => root.append(s("text", { x: left + (j + 0.5) * size - 1, y: 33, "text-anchor": "middle", fill: tint("soft"), "font-size": 11 }, name)));
    this.values.forEach((row, i) => {
      if (this.rowNames) root.append(s("text", { x: left - 8, y: top + i * tall + 16, "text-anchor": "end", fill: tint("soft") }, this.rowNames[i]));
      row.forEach((x, j) => {
        const fill = colour(x === null ? 0 : Math.sign(x) * 0.8 * Math.min(Math.abs(x) / most, 1));
        root.append(s("rect", { x: left + j * size, y: top + i * tall, width: size - 2, height: tall - 2, rx: 3, fill: css(fill) }), s("text", { x: left + (j + 0.5) * size - 1, y: top + i * tall + 15, "text-anchor": "middle", fill: ink(fill) }, number(x)));
      });
    });
    return root;
  }
}
