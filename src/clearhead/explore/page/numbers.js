/** Numbers and tokens as text, and the arithmetic that many figures need. */

/** x, or the end of the range that it is beyond. */
export const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/** The sum of numbers. */
export const total = (list) => list.reduce((sum, x) => sum + x, 0);

/** The smallest and the largest of many numbers; [Infinity, -Infinity] of none. */
export const spread = (list) =>
  list.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);

/** "1 token", "2,000 tokens". */
export const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

/** A token with its line breaks and tabs as signs. */
export function visible(piece) {
  return piece.replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
}

/** A token with its spaces as signs, too. */
export const spelt = (piece) => visible(piece).replace(/ /g, "␣");

/** A share from 0 to 1 in percent, with two significant digits. */
export function percent(x) {
  if (x === null || Number.isNaN(x)) return "–";
  if (x >= 0.9995) return "100 %";
  if (x >= 0.0995) return `${(100 * x).toFixed(0)} %`;
  if (x >= 1e-4) return `${(100 * x).toPrecision(2)} %`;
  return x > 0 ? "< 0.01 %" : "0 %";
}

/** A number with about three significant digits. */
export function number(x) {
  if (x === null || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return String(x).replace("-", "−");
  if (size < 1e-6) return "≈ 0";
  const text = size >= 1e5 || size < 1e-3 ? x.toExponential(1) : x.toFixed(decimals(size));
  return text.replace(/-/g, "−");
}

/** How many decimals a number of this size is written with. */
export function decimals(size) {
  if (size >= 100) return 1;
  return size >= 10 ? 2 : 3;
}
