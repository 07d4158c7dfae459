/** The arithmetic of every number of attention by hand, as text with the numbers in it. */

import { decimals, total } from "../numbers.js";

const SUPERSCRIPT = {
  "-": "⁻",
  0: "⁰",
  1: "¹",
  2: "²",
  3: "³",
  4: "⁴",
  5: "⁵",
  6: "⁶",
  7: "⁷",
  8: "⁸",
  9: "⁹",
};

// The digits of a number as text that JavaScript reads: integers whole, other numbers with 3
// decimals or 4 significant digits. Zeros at the end of a number that is not rounded are left out.
function digits(x) {
  const size = Math.abs(x);
  if (x === 0 || (Number.isInteger(x) && size < 1e7)) return String(x);
  const text = rounded(x);
  const exact = Math.abs(Number(text) - x) <= 1e-12 * size;
  return exact ? text.replace(/\.?0+(?=e|$)/, "") : text;
}

// Whether a number is so large or so small that it is written with a power of ten.
const exponential = (x) => x !== 0 && (Math.abs(x) >= 1e7 || Math.abs(x) < 1e-4);

function rounded(x) {
  if (exponential(x)) return x.toExponential(3);
  return Math.abs(x) >= 1 ? x.toFixed(3) : x.toPrecision(4);
}

// With the signs of print: a raised power of ten, and a minus as wide as a plus.
function pretty(text) {
  const raised = (_, power) => `·10${[...power].map((c) => SUPERSCRIPT[c]).join("")}`;
  return text.replace(/e\+?(-?\d+)$/, raised).replace(/^-/, "−");
}

/** A number inside an explanation. */
export const written = (x) => pretty(digits(x));

/** A number in a cell of a matrix: short, and "≈ 0" for what would be all zeros. */
export function shown(x) {
  if (x === null || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return pretty(String(x));
  if (size < 5e-4) return "≈ 0";
  if (size >= 1e5) return pretty(x.toExponential(1).replace(".0e", "e"));
  return pretty(x.toFixed(decimals(size)));
}

// A result at the end of an explanation: as in its cell, but a small one with all of its digits.
const result = (x) => (x !== 0 && Math.abs(x) < 0.01 ? written(x) : shown(x));

// An expression is { text, value of the numbers as they are written, loose: how loosely its parts
// are
// bound }: a looser one needs brackets inside a tighter one.
const NUMBER = 0;
const PRODUCT = 1;
const SUM = 2;
const NEGATIVE = 3;
const make = (text, value, loose = NUMBER) => ({ text, value, loose });
const inside = (one, most) => (one.loose > most ? `(${one.text})` : one.text);

/** A number as it is written, which its value follows. */
export function num(x) {
  const loose = exponential(x) ? PRODUCT : NUMBER;
  return make(written(x), Number(digits(x)), x < 0 ? NEGATIVE : loose);
}

/** "a·b·c" */
export function times(...all) {
  const text = all.map((one) => inside(one, PRODUCT)).join("·");
  return make(
    text,
    all.reduce((product, { value }) => product * value, 1),
    PRODUCT,
  );
}

/** "a + b + c" */
export function plus(...all) {
  // a negative number needs no brackets at the beginning
  const text = all.map((one, i) => inside(one, i ? PRODUCT : NEGATIVE)).join(" + ");
  const sum = total(all.map(({ value }) => value));
  return make(text, sum, all.length > 1 ? SUM : all[0].loose);
}

/** "a − b" */
export const minus = (a, b) => make(`${a.text} − ${inside(b, PRODUCT)}`, a.value - b.value, SUM);
/** "a / b" */
export const over = (a, b) =>
  make(`${inside(a, PRODUCT)} / ${inside(b, NUMBER)}`, a.value / b.value, PRODUCT);
const root = (n) => make(`√${n}`, Math.sqrt(n));
/** "e^x" */
export const exp = (x) => {
  const one = num(x);
  return make(`e^${inside(one, NUMBER)}`, Math.exp(one.value));
};
const call = (name, f) => (one) => make(`${name}(${one.text})`, f(one.value));
const tanh = call("tanh", Math.tanh);
const cos = call("cos", Math.cos);
const sin = call("sin", Math.sin);

/** "expression = x"; "≈" if the numbers as they are written give another result. */
export function equals(one, x) {
  const near = result(one.value) === result(x) ||
    Math.abs(one.value - x) <= 1e-9 * Math.max(1, Math.abs(x));
  return `${one.text} ${near ? "=" : "≈"} ${result(x)}`;
}

const dot = (a, b) => plus(...a.map((x, i) => times(num(x), num(b[i]))));
const column = (m, j) => m.map((row) => row[j]);
const length = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0));

/** One attention: what was asked for, and the numbers that the server computed. */
export class Computation {
  // asked: options, with x in the order that was asked for; answer: the server's
  constructor(asked, answer, names) {
    Object.assign(this, { asked, answer, names });
    this.heads = answer.weights.length;
    this.width = answer.q[0][0].length; // e, per head
    this.valueWidth = answer.v[0][0].length;
  }

  // The scores, with −∞ for masked pairs.
  score(head, i, j) {
    return this.answer.masked[i][j] ? -Infinity : this.answer.scores[head][i][j];
  }

  // Why a query may not attend to a key.
  maskReason(i, j) {
    const [query, key] = [this.names[i], this.names[j]];
    return this.asked.mask === "causal"
      ? `${key} comes after ${query}`
      : `${key} is ${Math.abs(i - j)} positions away from ${query}, outside the window of 2`;
  }

  // The largest score of a query that is not masked.
  largest(head, i) {
    return Math.max(...this.names.map((_, j) => this.score(head, i, j)));
  }

  // Explain a cell: { title, text, cells: [[matrix, row, column], ...] that it is computed from;
  // null: all rows or columns }
  explain(key, i, j) {
    const head = Number(key.slice(1)); // of e0, a0, e1, ...
    if (key === "x") {
      return {
        title: `X: ${this.names[i]}, column ${j + 1}`,
        text: "A number of the input: change it, and everything that is computed from it follows.",
        cells: ["q", "k", "v"].map((to) => [to, i, null]),
      };
    }
    if (/^w[qkv]$/.test(key)) {
      return {
        title: `W${key[1]}: row ${i + 1}, column ${j + 1}`,
        text: `A weight of the ${
          { q: "query", k: "key", v: "value" }[key[1]]
        } projection: change it, and column ${j + 1} of ${key[1].toUpperCase()} follows.`,
        cells: [[key[1], null, j]],
      };
    }
    if (key === "placed") return this.placed(i, j);
    if (/^[qkv]$/.test(key)) return this.projected(key, i, j);
    if (/^r[qk]$/.test(key)) return this.rotated(key[1], i, j);
    if (/^e\d/.test(key)) return this.scored(head, i, j);
    if (/^a\d/.test(key)) return this.weighted(head, i, j);
    return this.summed(i, j);
  }

  placed(i, j) {
    const { asked, answer } = this;
    const x = asked.x[i][j];
    const d = asked.x[0].length;
    const wave = j % 2 ? "cos" : "sin";
    return {
      title: `X + P: ${this.names[i]} at position ${i}, column ${
        j + 1
      }: P = ${wave}(${i} / 10000^(${j - (j % 2)}/${d}))`,
      text: equals(plus(num(x), num(answer.x[i][j] - x)), answer.x[i][j]),
      cells: [["x", i, j]],
    };
  }

  projected(key, i, j) {
    const { asked, answer } = this;
    const all = { q: answer.projected_q, k: answer.projected_k, v: answer.v }[key];
    const each = all[0][0].length;
    const from = asked.positions === "sinusoid" ? ["placed", "X + P"] : ["x", "X"];
    const w = `w${key}`;
    return {
      title: `${key.toUpperCase()}: row ${i + 1} of ${from[1]} (${this.names[i]}) times column ${
        j + 1
      } of W${key}`,
      text: equals(dot(answer.x[i], column(asked[w], j)), all[Math.floor(j / each)][i][j % each]),
      cells: [
        [from[0], i, null],
        [w, null, j],
      ],
    };
  }

  rotated(key, i, j) {
    const { answer, width } = this;
    const head = Math.floor(j / width);
    const at = j % width;
    const half = width / 2;
    const low = at < half;
    const other = low ? at + half : at - half;
    const own = answer[`projected_${key}`][head][i];
    const angle = num(answer.angles[i][at % half]);
    const pair = times(num(own[other]), sin(angle));
    const turned = times(num(own[at]), cos(angle));
    return {
      title: `${key.toUpperCase()}′: columns ${Math.min(at, other) + 1} and ${
        Math.max(at, other) + 1
      } of ${this.names[i]}, rotated by ${written(answer.angles[i][at % half])} (position ${i})`,
      text: equals(low ? minus(turned, pair) : plus(turned, pair), answer[key][head][i][at]),
      cells: [
        [key, i, head * width + at],
        [key, i, head * width + other],
      ],
    };
  }

  scored(head, i, j) {
    const { asked, answer, width } = this;
    const rotary = asked.positions === "rotary";
    const [qs, ks] = rotary ? ["rq", "rk"] : ["q", "k"];
    const who = `query ${this.names[i]}, key ${this.names[j]}`;
    const title = `${this.name("E", head)}: ${who}`;
    const cells = Array.from({ length: width }, (_, c) => [
      [qs, i, head * width + c],
      [ks, j, head * width + c],
    ]).flat();
    if (answer.masked[i][j]) {
      return { title, text: `masked: −∞, because ${this.maskReason(i, j)}`, cells };
    }
    const q = answer.q[head][i];
    const k = answer.k[head][j];
    const norms = [length(q), length(k)];
    const product = dot(q, k);
    if (asked.score === "cosine" && norms.includes(0)) {
      return {
        title,
        text: `the ${norms[0] ? "key" : "query"} has length 0, so that the cosine is set to ${
          this.bias(head, i, j, make("0", 0)).text
        }`,
        cells,
      };
    }
    const [first, second] = norms.map(num);
    const lengths = make(`(${first.text}·${second.text})`, first.value * second.value);
    let value = {
      dot: () => product,
      scaled: () => over(product, root(width)),
      cosine: () => over(product, lengths),
      additive: () => plus(...q.map((x, c) => tanh(plus(num(x), num(k[c]))))),
    }[asked.score]();
    if (asked.sharpness !== 1) value = times(num(asked.sharpness), value);
    const what = [
      rotary && "q and k have been rotated by their positions",
      asked.score === "cosine" && "divided by the lengths ‖q‖·‖k‖",
      asked.sharpness !== 1 && `sharpness ${written(asked.sharpness)}`,
      answer.slopes && "minus the slope of the head times the distance",
    ].filter(Boolean);
    return {
      title: title + (what.length ? ` (${what.join("; ")})` : ""),
      text: equals(this.bias(head, i, j, value), answer.scores[head][i][j]),
      cells,
    };
  }

  // A score with the bias of ALiBi.
  bias(head, i, j, value) {
    const { slopes } = this.answer;
    return slopes ? minus(value, times(num(slopes[head]), num(Math.abs(i - j)))) : value;
  }

  weighted(head, i, j) {
    const { answer } = this;
    const row = this.names.map((_, c) => this.score(head, i, c));
    const most = this.largest(head, i);
    const x = answer.weights[head][i][j];
    const title = `${this.name("A", head)}: ${this.names[i]} attends to ${this.names[j]}`;
    const cells = [[`e${head}`, i, null]];
    if (answer.masked[i][j]) {
      return {
        title,
        text: `masked: e^(−∞) = 0, so the weight is 0, because ${this.maskReason(i, j)}`,
        cells,
      };
    }
    // powers of e that a 64-bit number does not hold are written as the softmax computes them
    const far = most > 50 || most < -50;
    const least = far ? most : 0; // subtracted from every score
    const term = (e) => (e === -Infinity ? num(0) : exp(e - least));
    const sum = row.length > 1 ? { ...plus(...row.map(term)), loose: SUM } : term(row[0]);
    const share = over(term(row[j]), sum);
    const text = x === 0 ? `${share.text} ≈ 0 (too small for a 64-bit number)` : equals(share, x);
    const subtracted = far ? `with the largest score, ${written(most)}, subtracted: ` : "";
    return { title, text: subtracted + text, cells };
  }

  summed(i, j) {
    const { answer, valueWidth } = this;
    const head = Math.floor(j / valueWidth);
    const values = column(answer.v[head], j % valueWidth);
    const single = this.names.length === 1;
    const sum = single ? "the weight times the value" : "the weighted sum of the values";
    const of = this.heads > 1 ? ` of head ${head}` : "";
    return {
      title: `Y: ${this.names[i]}, column ${j + 1}: ${sum}${of}`,
      text: equals(dot(answer.weights[head][i], values), answer.out[i][j]),
      cells: [
        [`a${head}`, i, null],
        ["v", null, j],
      ],
    };
  }

  // The name of a matrix of one head.
  name(letter, head) {
    return this.heads > 1 ? `${letter}, head ${head}` : letter;
  }
}
