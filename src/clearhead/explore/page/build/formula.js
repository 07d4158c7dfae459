/** The formula in force, and the caption of every matrix. */

import { written } from "./arithmetic.js";

/** The scores as a formula of the options, for example "10 · Q Kᵀ / √dₖ − m·|i − j| + M". */
function scoreFormula({ score, sharpness, mask, positions }) {
  const [q, k] = positions === "rotary" ? ["Q′", "K′"] : ["Q", "K"];
  const base = {
    dot: `${q} ${k}ᵀ`,
    scaled: `${q} ${k}ᵀ / √dₖ`,
    cosine: `cos(${q}, ${k})`,
    additive: `Σ tanh(${q.replace("Q", "q")} + ${k.replace("K", "k")})`,
  }[score];
  const factor = sharpness === 1 ? "" : `${written(sharpness)} · `;
  const bias = positions === "alibi" ? " − m·|i − j|" : "";
  return factor + base + bias + (mask === "none" ? "" : " + M");
}

/** The formula of the outputs. */
export const attentionFormula = (options) => `softmax(${scoreFormula(options)}) V`;

/** The values of the symbols of the formula: dₖ, m and M. slopes: those of the heads to name */
export function symbols({ score, mask, positions }, width, slopes) {
  return [
    score === "scaled" && `dₖ = ${width}`,
    positions === "alibi" && slopes && `m = ${slopes.map(written).join(", ")}`,
    mask === "causal" && "M: −∞ for later inputs",
    mask === "window" && "M: −∞ for inputs 2 or more positions away",
  ].filter(Boolean);
}

/** What each matrix is, by its key; e and a: of one head */
export function captions(options, width, slope) {
  const { heads, positions } = options;
  const x = positions === "sinusoid" ? "(X + P)" : "X";
  const many = heads > 1 ? `, ${heads} heads` : "";
  const where = symbols(options, width, slope === null ? null : [slope]);
  const padded = options.padded ? ", a column of zeros added to make pairs" : "";
  return {
    x: "one input per row",
    wq: `query projection${many}${padded}`,
    wk: `key projection${many}${padded}`,
    wv: `value projection${many}`,
    placed: "inputs plus position vectors",
    q: `= ${x} Wq`,
    k: `= ${x} Wk`,
    v: `= ${x} Wv`,
    rq: "Q, rotated by position",
    rk: "K, rotated by position",
    e: `scores: ${[scoreFormula(options), ...where].join("; ")}`,
    a: "weights: softmax of the rows",
    out: heads > 1 ? `outputs: A V of the ${heads} heads, side by side` : "outputs: A V",
  };
}

/** The options in words, for the caption of a saved figure. */
export function inWords({ score, sharpness, mask, heads, positions }) {
  return [
    {
      dot: "dot-product scores",
      scaled: "scaled dot-product scores",
      cosine: "cosine scores",
      additive: "additive scores",
    }[score],
    sharpness === 1 ? null : `sharpness ${written(sharpness)}`,
    { none: "no mask", causal: "causal mask", window: "window of 2" }[mask],
    heads === 1 ? "1 head" : `${heads} heads`,
    positions === "none" ? "no positions" : `${positions} positions`,
  ]
    .filter(Boolean)
    .join(", ");
}
