/** The maps of the words of a caption: where the model looked, or what speaks for each word. */

import { mean, shaped } from "../images/patch_weights.js";
import { total } from "../numbers.js";

const SHORT = 3; // letters of words such as "a", "the" and "of", which no one asks about first

// The weights of one word (layers, heads, keys) of those of all words (layers, heads, words, keys).
function weightsOf({ data, shape: [layers, heads, words, keys] }, word) {
  const own = new Float32Array(layers * heads * keys);
  for (let i = 0; i < layers * heads; i++) {
    const from = (i * words + word) * keys;
    own.set(data.subarray(from, from + keys), i * keys);
  }
  return { data: own, shape: [layers, heads, keys] };
}

/** The weights of each word in all heads; `of`: the array that they are from. */
export function byWord(every) {
  const words = Array.from({ length: every.shape[2] }, (_, i) => weightsOf(every, i));
  return { of: every, words };
}

/** The mean of the chosen heads over the patches, for each word. */
export function attentionMaps(words, { columns }, layer, head) {
  const patches = (weights) => mean(weights, layer, head).subarray(columns.special.length);
  return words.map((weights) => shaped(patches(weights), columns.grid));
}

/** The evidence at each place, for each word. */
export function evidenceMaps({ data, shape: [words, rows, columns] }) {
  const grid = [rows, columns];
  return Array.from({ length: words }, (_, i) => shaped(data.subarray(i * rows * columns), grid));
}

/** The number of the longer word whose map differs most from the mean of all. */
export function mostTelling(words, maps) {
  const flat = maps.map((map) => map.flat());
  const means = flat[0].map((_, i) => total(flat.map((map) => map[i])) / flat.length);
  const long = words.some((word) => word.length > SHORT);
  const distance = (map, n) => {
    if (long && words[n].length <= SHORT) return -1;
    return total(map.map((x, i) => Math.abs(x - means[i])));
  };
  const distances = flat.map(distance);
  return distances.indexOf(Math.max(...distances));
}
