/**
 * Colour scales for weights and for signed numbers, with perceptually even steps, for both themes.
 */

const BLUES = [
  "#fafafa",
  "#bde3f2",
  "#83caec",
  "#51ade3",
  "#2c8dd4",
  "#1d6dbd",
  "#204f9d",
  "#203477",
  "#191e4c",
];
const ORANGES = [
  "#fafafa",
  "#edd9be",
  "#e1b687",
  "#d29355",
  "#bf7129",
  "#a65200",
  "#883600",
  "#662100",
  "#421203",
];
const NIGHT = [
  "#171b22",
  "#1b2f4b",
  "#1d4675",
  "#1f61a0",
  "#2c80c8",
  "#51a1e3",
  "#83c2ee",
  "#bde0f5",
  "#f2f8fc",
];
const EMBER = [
  "#171b22",
  "#3a2412",
  "#5f3712",
  "#8a4d12",
  "#b5681f",
  "#d58a45",
  "#e6ae78",
  "#f0d0ac",
  "#faf0e2",
];
/** Colours of lines that are told apart, also by people who do not see red or green. */
export const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a869a"];

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const scales = {
  light: { up: BLUES.map(rgb), down: ORANGES.map(rgb) },
  dark: { up: NIGHT.map(rgb), down: EMBER.map(rgb) },
};

/** Whether the page is dark: by the user's choice, or by that of the system. */
export function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function at(scale, t) {
  const x = Math.min(Math.max(t, 0), 1) * (scale.length - 1);
  const i = Math.min(Math.floor(x), scale.length - 2);
  return scale[i].map((low, c) => Math.round(low + (scale[i + 1][c] - low) * (x - i)));
}

/**
 * The colour [red, green, blue] at t from 0 to 1, or from -1 to 1; the darkest colours are left out
 * so that text stays readable on them.
 */
export function colour(t) {
  const { up, down } = scales[dark() ? "dark" : "light"];
  return t < 0 ? at(down, -t * 0.8) : at(up, t * 0.86);
}

/** A colour as CSS. */
export const css = ([r, g, b]) => `rgb(${r},${g},${b})`;

/** Black or white, whichever is easier to read on a colour: at least 4.5:1 on any. */
export function ink(rgb) {
  const [r, g, b] = rgb.map((x) => {
    const c = x / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000000" : "#ffffff";
}

/** A colour of the theme by its name in the style sheet. */
export const tint = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
