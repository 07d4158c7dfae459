/** What patching found, in words, and what keeps two prompts from being exchanged. */

import { counted, number, spelt } from "../numbers.js";

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
  if (two) {
    const before = `After the clean prompt ${one} is ${times(clean)} than ${two}`;
    return `${before}, after the corrupted one it is ${times(corrupted)}.`;
  }
  const before = `The log-probability of ${one} is ${number(clean)} after the clean prompt`;
  return `${before} and ${number(corrupted)} after the corrupted one.`;
}

function times(nats) {
  const factor = Number(Math.exp(Math.abs(nats)).toPrecision(2)).toLocaleString("en");
  return `${factor} times ${nats < 0 ? "less" : "more"} likely`;
}

function weak({ clean, corrupted }) {
  const nats = number(Math.abs(clean - corrupted));
  return `The prompts differ in this by ${nats} nats only: a share of so little means nothing, so there is no map. Choose prompts, or answers, that differ by ${LEAST} nats or more.`;
}

// The places that bring back more than half, from the first block to the last.
function where({ what, effects, columns }) {
  const all = effects.flatMap((row, layer) => row.map((x, at) => ({ x, layer, at })));
  const best = all.reduce((a, b) => (b.x > a.x ? b : a));
  const share = number(best.x);
  if (what === "heads") {
    const head = `head ${best.at} of block ${best.layer}`;
    return `The head that brings back most is ${head}, with ${share}.`;
  }
  const name = (i) => `${quoted(columns[i])}${i === columns.length - 1 ? ", the last token" : ""}`;
  if (best.x <= HALF) {
    const place = `${name(best.at)} in block ${best.layer}`;
    return `No single place brings back half of the answer; the most, ${share}, comes from ${place}.`;
  }
  const said = strongest(effects).map(({ at, first, last }) => {
    const blocks = first === last ? `in block ${first}` : `in blocks ${first} to ${last}`;
    return `${blocks} at ${name(at)}`;
  });
  return `Most of the difference is carried ${said.join(", then ")}.`;
}

// The token with the largest effect of each block, if it is more than half; neighbouring blocks
// with the same one are one span { at, first, last }.
function strongest(effects) {
  const spans = [];
  effects.forEach((row, layer) => {
    const at = row.indexOf(Math.max(...row));
    const before = spans.at(-1);
    if (row[at] <= HALF) return;
    if (before?.at === at && before.last === layer - 1) before.last = layer;
    else spans.push({ at, first: layer, last: layer });
  });
  return spans;
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
  const few = counted(differing, "token");
  const same = `The prompts have the same number of tokens and differ in ${few}.`;
  if (!answer.trim()) {
    return `${same} Without answers, the likeliest token after each prompt is taken.`;
  }
  return other.trim() ? same : `${same} With one answer, its log-probability is measured.`;
}

// Whether each token is one character, or less.
const letters = (tokens) => tokens.length > 1 && tokens.every((token) => [...token].length < 2);

function unequal(one, two) {
  const lengths =
    `The clean prompt has ${one.length} tokens and the corrupted one ${two.length}: they need the same number.`;
  if (letters(one) && letters(two)) {
    return `${lengths} Every character is a token of this model: exchange words with the same number of letters.`;
  }
  const [word] = splitWords(one.length > two.length ? one : two);
  if (!word) return `${lengths} Add or remove a word.`;
  const text = word.join("").trim();
  const capital = word.first && /^\p{Ll}/u.test(text);
  const other = capital
    ? "with a capital letter, as the first word of a text, it"
    : "a commoner word";
  return `${lengths} “${text}” is ${word.length} tokens; ${other} may be one token.`;
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
