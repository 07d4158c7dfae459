/** The form of the view Write: the text, and how it is continued. */

import { slide } from "../controls.js";
import { h } from "../dom.js";
import { clamp } from "../numbers.js";

const LARGEST_SEED = 2147483647;

/**
 * The controls by the keys of the state, each with .set(value), and `fields` to show. set(key):
 * changes a setting; reshape(): draws the candidates again, which sampling changes
 */
export function writeControls(state, set, reshape) {
  const number = (label, key, options) =>
    slide(label, {
      ...options,
      value: state[key],
      change: (x) => {
        set(key, x);
        reshape();
      },
    });
  const controls = {
    max_new: number("new tokens", "max_new", { min: 1, max: 200, step: 1 }),
    temperature: number("temperature", "temperature", {
      min: 0,
      max: 2,
      step: 0.1,
      show: (x) => (x ? x.toFixed(1) : "0: greedy"),
    }),
    top_k: number("top-k", "top_k", { min: 0, max: 50, step: 1, show: (x) => x || "off" }),
    top_p: number("top-p", "top_p", {
      min: 0.05,
      max: 1,
      step: 0.05,
      show: (x) => (x === 1 ? "off" : x.toFixed(2)),
    }),
    seed: seedField(state.seed, (seed) => set("seed", seed)),
  };
  return { ...controls, chat: chatField((on) => set("chat", on)) };
}

function seedField(value, change) {
  const onchange = () => {
    input.value = clamp(Math.floor(Number(input.value) || 0), 0, LARGEST_SEED);
    change(Number(input.value));
  };
  const input = h("input", { type: "number", min: 0, max: LARGEST_SEED, value, onchange });
  const field = h("label", { class: "field short" }, h("span", {}, "seed"), input);
  const set = (to) => {
    input.value = to;
  };
  return Object.assign(field, { set });
}

function chatField(change) {
  const onchange = () => change(Number(input.checked));
  const input = h("input", { type: "checkbox", onchange });
  const title =
    "Write the text with the model's chat template, as a message that the model answers";
  const field = h("label", { class: "tick chat", hidden: true, title }, input, "as a chat");
  const set = (on) => {
    input.checked = Boolean(on);
  };
  return Object.assign(field, { set });
}

/** The part of a request that says how tokens are drawn; greedy sampling has neither limit. */
export function samplingOf({ temperature, top_k, top_p }) {
  const sampling = { temperature };
  if (temperature && top_k) sampling.top_k = top_k;
  if (temperature && top_p < 1) sampling.top_p = top_p;
  return sampling;
}

/** How tokens are drawn, in words. */
export function samplingWords({ temperature, top_k, top_p }, greedy = "greedy sampling") {
  if (!temperature) return greedy;
  const words = [`temperature ${temperature}`];
  if (top_k) words.push(`top-k ${top_k}`);
  if (top_p) words.push(`top-p ${top_p}`);
  return words.join(", ");
}
