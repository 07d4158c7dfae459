/** The weights of one head as a source for a heat map: those of long texts are loaded in parts. */

import { floats, get, rowsOf } from "../api.js";
import { number } from "../numbers.js";

const WHOLE = 512; // largest number of tokens per side whose weights are requested at once
const POOLED = 256; // cells per side of a larger part
const LARGEST = 4e6; // most weights that a saved file holds

const small = (rows, keys) => Math.max(rows.length, keys.length) <= WHOLE;

// The query of the server for the chosen head.
function headQuery({ group, look, state: { layer, head } }) {
  return { look: look.id, group: group.name, layer, head, format: "float32" };
}

/**
 * The source of what `inside` shows: { rows, keys, part, special, words }, where special are the
 * sets of special keys and queries, and words whether it is between words.
 */
export async function attentionSource(inside, signal) {
  const { group, look, state } = inside;
  const query = headQuery(inside);
  const request = async (more) => {
    const found = await floats("looks/map", { ...query, ...more }, signal);
    return { weights: rowsOf(found), most: found.most };
  };
  if (group.words && state.by === "words") {
    const given = { look: look.id, group: group.name };
    inside.words[group.name] ??= await get("looks/words", given, signal);
    const { rows, columns } = inside.words[group.name];
    const part = () => request({ by: state.by });
    return { rows, keys: columns, part, special: [new Set(), new Set()], words: true };
  }
  const part = (row, rows, key, keys) => {
    const cells = Math.max(row + rows, key + keys) <= WHOLE ? WHOLE : POOLED;
    return request({ row, rows, key, keys, cells });
  };
  const special = [new Set(group.columns.special), new Set(group.rows.special)];
  return { rows: group.rows.names, keys: group.columns.names, part, special, words: false };
}

/** Load all weights of a short text, so that its parts need no request; null for a long one. */
export async function loadWhole(source) {
  const { rows, keys } = source;
  if (!small(rows, keys)) return null;
  const loaded = await source.part(0, rows.length, 0, keys.length);
  source.part = (row, n, key, m) => {
    if (n === rows.length && m === keys.length) return loaded;
    const band = loaded.weights.slice(row, row + n);
    return { weights: band.map((weights) => weights.subarray(key, key + m)), most: loaded.most };
  };
  return loaded;
}

/** The names and weights of what `inside` shows, as plain values. */
export async function savedWeights(inside) {
  const { rows, keys, part } = inside.shown;
  const full = rows.length * keys.length <= LARGEST;
  const inBands = full && !small(rows, keys);
  const weights = inBands
    ? await bands(inside, rows.length, keys.length)
    : (await part(0, rows.length, 0, keys.length)).weights;
  if (full) return { queries: rows, keys, weights };
  const each = number(keys.length / weights[0].length);
  const of = `${rows.length} x ${keys.length}`;
  const pooled = `each number is the mean over some queries and the sum over ${each} keys of ${of}`;
  return { queries: rows, keys, weights, pooled };
}

// All weights of a long text, requested in squares of WHOLE tokens per side.
async function bands(inside, rows, keys) {
  const query = headQuery(inside);
  const weights = [];
  for (let row = 0; row < rows; row += WHOLE) {
    const n = Math.min(WHOLE, rows - row);
    const band = Array.from({ length: n }, () => []);
    for (let key = 0; key < keys; key += WHOLE) {
      const part = { row, rows: n, key, keys: Math.min(WHOLE, keys - key), cells: WHOLE };
      const found = await floats("looks/map", { ...query, ...part });
      rowsOf(found).forEach((own, i) => band[i].push(...own));
    }
    weights.push(...band.map((numbers) => Float32Array.from(numbers)));
  }
  return weights;
}
