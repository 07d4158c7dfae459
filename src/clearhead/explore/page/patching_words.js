/** What patching found, in words, and what keeps two prompts from being exchanged. */

import { number, spelt } from "./dom.js";

const HALF = 0.5; // of the effect: where it is said to be
// nats by which the prompts must differ in what is measured: shares of less are noise
const LEAST = 0.1;

const quoted = (name) => `“${spelt(name)}”`;

/**
 * Whether the prompts differ too little in what is measured for shares of the difference to mean
 * something.
 */
export const faint = ({ clean, corrupted }) => Math.abs(clean - corrupted) < LEAST;

/** What is measured, how much the prompts differ in it, and where the difference comes from. */
export function verdict(found) {
  return `${measured(found)} ${faint(found) ? weak(found) : where(found)}`;
}

function measured({ answers, clean, corrupted }) {
  const [one, two] = answers.map(quoted);
  return two
    ? `After the clean prompt ${one} is ${
      times(clean)
    } than ${two}, after the corrupted one it is ${times(corrupted)}.`
    : `The log-probability of ${one} is ${number(clean)} after the clean prompt and ${
      number(corrupted)
    } after the corrupted one.`;
}

const times = (x) =>
  `${Number(Math.exp(Math.abs(x)).toPrecision(2)).toLocaleString("en")} times ${
    x < 0 ? "less" : "more"
  } likely`;

const weak = ({ clean, corrupted }) =>
  `The prompts differ in this by ${
    number(Math.abs(clean - corrupted))
  } nats only: a share of so little means nothing, so there is no map. Choose prompts, or answers, that differ by ${LEAST} nats or more.`;

// The places that bring back more than half, from the first block to the last.
function where({ what, effects, columns }) {
  const all = effects.flatMap((row, layer) => row.map((x, at) => ({ x, layer, at })));
  const best = all.reduce((a, b) => (b.x > a.x ? b : a));
  if (what === "heads") {
    return `The head that brings back most is head ${best.at} of block ${best.layer}, with ${
      number(best.x)
    }.`;
  }
  const name = (i) => `${quoted(columns[i])}${i === columns.length - 1 ? ", the last token" : ""}`;
  if (best.x <= HALF) {
    return `No single place brings back half of the answer; the most, ${
      number(best.x)
    }, comes from ${name(best.at)} in block ${best.layer}.`;
  }
  const spans = [];
  effects.forEach((row, layer) => {
    const at = row.indexOf(Math.max(...row));
    const before = spans.at(-1);
    if (row[at] <= HALF) return;
    if (before?.at === at && before.last === layer - 1) before.last = layer;
    else spans.push({ at, first: layer, last: layer });
  });
  const said = spans.map(
    ({ at, first, last }) =>
      `${first === last ? `in block ${first}` : `in blocks ${first} to ${last}`} at ${name(at)}`,
  );
  return `Most of the difference is carried ${said.join(", then ")}.`;
}

/**
 * What keeps the prompts from being exchanged, and how to change that; "" if nothing does. tokens:
 * of both prompts
 */
export function obstacle([one, two], { clean, corrupted, answer, other }) {
  if (!clean.trim() || !corrupted.trim()) return "Type both prompts.";
  if (one.length !== two.length) return unequal(one, two);
  if (one.every((token, i) => token === two[i])) {
    return "The prompts are the same: change a word of one.";
  }
  if (other.trim() && !answer.trim()) {
    return "Type the answer to the clean prompt, too, or leave both empty.";
  }
  return "";
}

/** What the prompts have in common, and what is measured. */
export function agreement([one, two], { answer, other }) {
  const differing = one.filter((token, i) => token !== two[i]).length;
  const few = `${differing} token${differing === 1 ? "" : "s"}`;
  const measure = answer.trim()
    ? other.trim() ? "" : " With one answer, its log-probability is measured."
    : " Without answers, the likeliest token after each prompt is taken.";
  return `The prompts have the same number of tokens and differ in ${few}.${measure}`;
}

// Whether each token is one character, or less.
const letters = (tokens) => tokens.length > 1 && tokens.every((token) => [...token].length < 2);

function unequal(one, two) {
  if (letters(one) && letters(two)) {
    return `The clean prompt has ${one.length} tokens and the corrupted one ${two.length}: they need the same number. Every character is a token of this model: exchange words with the same number of letters.`;
  }
  const [word] = splitWords(one.length > two.length ? one : two);
  const text = word?.join("").trim();
  const change = !word
    ? "Add or remove a word."
    : `“${text}” is ${word.length} tokens; ${
      word.first && /^\p{Ll}/u.test(text)
        ? "with a capital letter, as the first word of a text, it"
        : "a commoner word"
    } may be one token.`;
  return `The clean prompt has ${one.length} tokens and the corrupted one ${two.length}: they need the same number. ${change}`;
}

// The words of more than one token, each as a list of its tokens; first: whether a word is the
// first of the text.
function splitWords(tokens) {
  const words = [];
  tokens.forEach((token, i) => {
    if (i && /^[\p{L}\p{N}]/u.test(token)) words.at(-1).push(token);
    else words.push(Object.assign([token], { first: i === 0 }));
  });
  return words.filter((word) => word.length > 1);
}
