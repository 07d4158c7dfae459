/** Attention weights as numbers of patches. */

/** The mean of weights (layers, heads, keys) over the layers and heads that are not chosen. */
export function mean({ data, shape: [layers, heads, keys] }, layer, head) {
  const rows = [];
  for (let l = 0; l < layers; l++) {
    if (layer !== null && l !== layer) continue;
    for (let e = 0; e < heads; e++) {
      if (head !== null && e !== head) continue;
      const from = (l * heads + e) * keys;
      rows.push(data.subarray(from, from + keys));
    }
  }
  const means = new Float32Array(keys);
  for (const row of rows) {
    row.forEach((x, i) => {
      means[i] += x / rows.length;
    });
  }
  return means;
}

/** Numbers as rows of a grid. */
export const shaped = (data, [ny, nx]) =>
  Array.from({ length: ny }, (_, y) => Array.from(data.subarray(y * nx, (y + 1) * nx)));
