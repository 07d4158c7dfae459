/**
 * The options of the Build view: their defaults, how they are read from an address, and what
 * differs from the defaults.
 */

/** The choices of each control: [id, text]. */
export const PANELS = ["attention", "positions", "memory"];
export const SCORES = [
  ["dot", "dot product"],
  ["scaled", "scaled dot product"],
  ["cosine", "cosine"],
  ["additive", "additive (tanh)"],
];
export const MASKS = [
  ["none", "none"],
  ["causal", "causal: no later inputs"],
  ["window", "window of 2"],
];
export const POSITIONS = [
  ["none", "none"],
  ["sinusoid", "sinusoid: X + P"],
  ["rotary", "rotary"],
  ["alibi", "ALiBi"],
];
export const KINDS = [
  ["sinusoid", "sinusoid"],
  ["rotary", "rotary"],
  ["alibi", "ALiBi"],
  ["sincos2d", "rows and columns"],
];
/** More inputs than these cannot be added. */
export const MOST_INPUTS = 6;
const LARGEST = 1e6; // the largest number of a matrix

/** The lecture's example: three inputs of width 4, queries, keys and values of width 3. */
export const EXAMPLE = {
  words: ["input 1", "input 2", "input 3"],
  x: [
    [1, 0, 1, 0],
    [0, 2, 0, 2],
    [1, 1, 1, 1],
  ],
  wq: [
    [1, 0, 1],
    [1, 0, 0],
    [0, 0, 1],
    [0, 1, 1],
  ],
  wk: [
    [0, 0, 1],
    [1, 1, 0],
    [0, 1, 0],
    [1, 1, 0],
  ],
  wv: [
    [0, 2, 0],
    [0, 3, 0],
    [1, 0, 3],
    [1, 1, 0],
  ],
  score: "dot",
  sharpness: 1,
  mask: "none",
  heads: 1,
  positions: "none",
  order: [0, 1, 2],
  padded: false, // whether a column of zeros was added to Wq and Wk, for rotary positions
};
/** The options of all panels. */
export const DEFAULTS = {
  ...EXAMPLE,
  kind: "sinusoid",
  width: 64,
  length: 64,
  base: 10000,
  head: 0,
  patch: null,
  gamma: 0.9,
  sharp: 6,
};

/** A copy of plain values. */
export const copy = (x) => JSON.parse(JSON.stringify(x));
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const among = (list) => (x) => list.some(([id]) => id === x);
const between = (low, high, whole = false) => (x) =>
  typeof x === "number" && x >= low && x <= high && (!whole || Number.isInteger(x));
const list = (x) => Array.isArray(x) && x.length > 0 && x.length <= 16;
function matrix(x) {
  if (!list(x) || !x.every(list)) return false;
  return x.every((row) => row.length === x[0].length && row.every(between(-LARGEST, LARGEST)));
}
function permutation(x, n) {
  const sorted = Array.isArray(x) && [...x].sort((a, b) => a - b);
  return same(
    sorted,
    Array.from({ length: n }, (_, i) => i),
  );
}

const VALID = {
  words: (x) => Array.isArray(x) && x.every((one) => typeof one === "string"),
  x: matrix,
  wq: matrix,
  wk: matrix,
  wv: matrix,
  order: Array.isArray,
  padded: (x) => typeof x === "boolean",
  score: among(SCORES),
  mask: among(MASKS),
  positions: among(POSITIONS),
  sharpness: between(0, 1e4),
  heads: between(1, 3, true),
  kind: among(KINDS),
  width: between(8, 256, true),
  length: between(4, 256, true),
  base: between(1.01, 1e6),
  head: between(0, 7, true),
  patch: (x) => Array.isArray(x) && x.length === 2 && x.every(between(0, 255, true)),
  gamma: between(0.01, 1),
  sharp: between(0, 100),
};

/**
 * The options in an address: the text of a JSON object with what differs from the defaults.
 * `whole`: whether all of it could be used.
 */
export function read(text) {
  let given = {};
  let whole = true;
  try {
    given = JSON.parse(text ?? "{}") ?? {};
  } catch {
    whole = false;
  }
  if (typeof given !== "object") whole = false;
  const found = copy(DEFAULTS);
  for (const [key, value] of Object.entries(given)) {
    if (VALID[key]?.(value)) found[key] = value;
    else whole = false;
  }
  if (found.heads > 1 && !["wq", "wk", "wv"].some((key) => key in given)) {
    const { heads } = found;
    found.heads = 1;
    changeHeads(found, heads);
  }
  if (!fitting(found)) {
    Object.assign(found, copy(EXAMPLE));
    whole = false;
  }
  if (!permutation(found.order, found.x.length)) {
    if (given.order) whole = false;
    found.order = found.x.map((_, i) => i);
  }
  pad(found);
  return { found, whole };
}

// Whether the sizes of the matrices agree.
function fitting({ x, wq, wk, wv, heads }) {
  return (
    [wq, wk, wv].every((m) => m.length === x[0].length && m[0].length % heads === 0) &&
    wq[0].length === wk[0].length
  );
}

/** What of a state differs from the defaults. */
export function differences(state) {
  return Object.fromEntries(
    Object.entries(state).filter(([key, value]) => key in DEFAULTS && !same(value, DEFAULTS[key])),
  );
}

/**
 * Change the number of heads: a new head gets the columns of the first one, with its rows shifted
 * by its number.
 */
export function changeHeads(state, n) {
  for (const key of ["wq", "wk", "wv"]) {
    const old = state[key];
    const each = old[0].length / state.heads;
    const part = (i, head) => {
      if (head < state.heads) return old[i].slice(head * each, (head + 1) * each);
      return old[(i + head) % old.length].slice(0, each);
    };
    const heads = (_, i) => Array.from({ length: n }, (_, head) => part(i, head)).flat();
    state[key] = old.map(heads);
  }
  state.heads = n;
}

/**
 * Rotary positions rotate pairs of columns: heads of odd width get a column of zeros, which is
 * removed with the rotation.
 */
export function pad(state) {
  const each = state.wq[0].length / state.heads;
  const rotary = state.positions === "rotary";
  const split = (row) =>
    Array.from({ length: state.heads }, (_, head) => row.slice(head * each, (head + 1) * each));
  const change = (one) => {
    for (const key of ["wq", "wk"]) {
      state[key] = state[key].map((row) => split(row).map(one).flat());
    }
  };
  if (rotary && each % 2) {
    change((part) => [...part, 0]);
    state.padded = true;
  } else if (!rotary && state.padded) {
    const parts = [...state.wq, ...state.wk].flatMap(split);
    // a column that was edited since stays
    if (parts.every((part) => part.at(-1) === 0)) change((part) => part.slice(0, -1));
    state.padded = false;
  }
}

/** Add an input with a 1 in its own column, or remove the last one. */
export function changeInputs(state, by) {
  const n = state.x.length;
  if (by > 0) {
    state.x.push(state.x[0].map((_, j) => (j === n % state.x[0].length ? 1 : 0)));
    state.words[n] ??= `input ${n + 1}`;
  } else {
    state.x.pop();
    state.words.length = Math.min(state.words.length, n - 1);
  }
  state.order = state.x.map((_, i) => i);
}

/** The names of the inputs in their present order. */
export const names = (state) => state.order.map((i) => state.words[i] ?? `input ${i + 1}`);
