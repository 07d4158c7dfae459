/** What the numbers of runs are called, and their units. */

// By the name of a measurement: a title and a unit.
const MEASURED = {
  near: ["generated points near a mode", "share of points"],
  modes: ["modes with enough generated points", "modes"],
  information: ["mutual information of outputs and labels", "nats"],
  f1: ["macro F1", "score from 0 to 1"],
  bleu: ["BLEU", "score from 0 to 100"],
  chrf: ["chrF", "score from 0 to 100"],
};
const VALID = "valid_"; // before the name of what is measured on held-out data

/** A name in a record as words. */
export const words = (name) => name.replaceAll("_", " ");
/** A text with a capital letter at its beginning. */
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
/** "a, b and c" */
export const listed = (names) => `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
/** A list without what it has twice. */
export const unique = (list) => [...new Set(list)];

/** What a run trains, on what: "gpt on text". */
export function subject({ model, data }) {
  if (model && data) return `${model} on ${data}`;
  return model ?? (data ? `data ${data}` : "");
}

/** "step 8 of 20" */
export function progress({ step, steps }) {
  const of = steps ? ` of ${steps.toLocaleString("en")}` : "";
  return `step ${step.toLocaleString("en")}${of}`;
}

/** The title of a number of a run. */
export function titleOf(name) {
  if (!name.startsWith(VALID)) return capital(words(name));
  const own = name.slice(VALID.length);
  return `Validation: ${MEASURED[own]?.[0] ?? words(own)}`;
}

/** What the y axis of a number is called if its unit is not known. */
export const plainName = (name) => words(name.replace(/^valid_/, ""));

/**
 * The unit of a number of a run: of a loss, that of its validation; of a share, also what it is a
 * share of; "" if it is not known.
 */
export function unitOf(run, name) {
  const own = run.measurements[name] ?? run.measurements[`${VALID}${name}`];
  if (!own) return "";
  const known = MEASURED[name.replace(/^valid_/, "")]?.[1];
  if (known) return known;
  const counted = run.measurements[`${VALID}${run.losses[0]}`]?.unit.split("/")[1];
  return own.unit === "share" && counted ? `share of ${counted}s` : own.unit;
}

// Whether two runs count in the same tokens, as far as that is known.
function sameTokens(one, two) {
  if (!one || !two) return true;
  if (one.files && two.files) return one.files === two.files;
  const alike = (key) => one[key] === null || two[key] === null || one[key] === two[key];
  return alike("vocab") && alike("kind");
}

/** What is said beside the unit of numbers per token, if the runs count in different tokens. */
export function apart(runs, unit) {
  const same = runs.every((run) => sameTokens(run.tokens, runs[0].tokens));
  return same || !/token/.test(unit) ? "" : " (different tokens: not comparable)";
}
