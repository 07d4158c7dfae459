/** The ticks of axes: round numbers over a range of values, and how they are written. */

import { spread } from "../numbers.js";

// powers of ten from which on a logarithmic axis names whole powers only
const FEWEST_DECADES = 3.2;

/**
 * The range, ticks and kind of the y axis. A share goes from 0 to 1; counts have whole ticks; other
 * axes include 0 if it is near.
 */
export function yAxis(values, { log, unit }) {
  let [low, high] = spread(values);
  if (log && low > 0 && high / low > 20) return { log: true, ...decades(low, high) };
  const whole = values.every(Number.isInteger);
  if (high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high))) {
    // one value: the axis goes from 0 to it
    low = Math.min(low, 0);
    high = Math.max(high, 0);
  }
  if (low === high) high = 1;
  if (unit.startsWith("share") && low >= 0 && high <= 1) {
    low = 0;
    if (high > 0.5) high = 1;
  }
  if (low > 0 && (whole || low < 0.4 * high)) low = 0;
  if (high < 0 && high > 0.4 * low) high = 0;
  const { marks, step } = ticks(low, high, 5, whole, true);
  return { log: false, low: marks[0], high: marks.at(-1), marks, step };
}

/** At most about `most` ticks at round numbers; outer: those that enclose the range. */
export function ticks(low, high, most, whole, outer = false) {
  const raw = (high - low) / most;
  const size = 10 ** Math.floor(Math.log10(raw));
  // 1e-9 everywhere: rounding errors must not add or drop a tick
  const round = [1, 2, 5, 10].find((x) => x * size >= raw * (1 - 1e-9)) * size;
  const step = whole ? Math.max(1, Math.round(round)) : round;
  const [first, last] = outer
    ? [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)]
    : [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  const mark = (i) => Number((i * step).toPrecision(12)) + 0; // + 0: never -0
  return { step, marks: Array.from({ length: last - first + 1 }, (_, i) => mark(first + i)) };
}

// Ticks of a logarithmic axis that enclose the range: 1 and 3 of each power of ten, or whole powers
// if there are many.
function decades(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9);
  const last = Math.ceil(Math.log10(high) - 1e-9);
  const every = Math.ceil((last - first) / 6);
  let marks = [];
  if (Math.log10(high / low) > FEWEST_DECADES) {
    for (let e = first; e < last + every; e += every) marks.push(10 ** e);
  } else {
    for (let e = first; e <= last; e++) marks.push(10 ** e, 3 * 10 ** e);
    const encloses = (_, i) => !(marks[i + 1] <= low) && !(marks[i - 1] >= high);
    marks = marks.filter(encloses);
  }
  marks = marks.map((y) => Number(y.toPrecision(1)));
  return { low: marks[0], high: marks.at(-1), marks };
}

/** A tick in few characters: in thousands (k) or millions (M) if the largest one needs it. */
export function tickName(x, among) {
  const largest = Math.max(...among.map(Math.abs));
  const size = Math.abs(x);
  if (x === 0) return "0";
  if (largest >= 1e6 && size >= 1e6) return `${Number((x / 1e6).toPrecision(6))}M`;
  if (largest >= 1e6 && size >= 1e3) return `${x / 1e3}k`;
  if (largest >= 1e4 && size >= 1e3) return `${Number((x / 1e3).toPrecision(6))}k`;
  const tiny = largest < 1e-3 || size < 1e-4;
  const text = tiny ? x.toExponential().replace("e-", "e−") : String(x);
  return text.replace(/^-/, "−");
}
