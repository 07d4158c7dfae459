/** What is said of a continuation. */

import { h } from "../dom.js";
import { counted, spelt, visible } from "../numbers.js";
import { countOff, headNames } from "./silenced_heads.js";

/** The written text. */
export const plain = (steps) => steps.map(({ text }) => text).join("");

/** The text with its continuation, as a title. */
export function continuationTitle(text, written) {
  if (!written) return `“${text.slice(0, 200)}”`;
  return `“${text.slice(0, 80)}” … “${written.slice(0, 120).trim()}”`;
}

/** What was written, or inspected, and how long it took; model: the one that wrote. */
export function summaryOf({ steps, look, ended, request, seconds }, model) {
  if (ended && !steps.length) {
    const first = `the first token that the model chose, ${spelt(ended)}, ends the text.`;
    const advice = model?.chat && !request.chat
      ? " It was trained on conversations: with “as a chat” it answers."
      : "";
    return `Nothing was written: ${first}${advice}`;
  }
  const inspected = `${counted(look?.text.names.length ?? 0, "token")} inspected`;
  const done = steps.length ? `${counted(steps.length, "token")} written` : inspected;
  const end = ended ? `; ${spelt(ended)} ended the text` : "";
  return `${done} in ${(seconds ?? 0).toFixed(1)} s${end}.`;
}

/** What is said above the text: what of it the model read, and why there is no attention. */
export function remarksOf({ cut, look, steps }) {
  const said = [];
  if (cut) {
    const [of, most, read] = [cut.of, cut.most, cut.read].map((n) => n.toLocaleString("en"));
    const tokens = `${of} tokens${steps.length ? ", the written ones included" : ""}`;
    const limit = `This text has ${tokens}, and the model reads at most ${most} at once`;
    const shown = steps.length
      ? `the ${read} that it had read when it wrote the last one`
      : `the last ${read}`;
    said.push(`${limit}: shown are ${shown}.`);
  }
  if (look && !look.groups.length) {
    said.push(`There is no attention to show: ${look.reason ?? "this model has none"}.`);
  }
  return said;
}

/** The text that was written with all heads, above the one that was written without some. */
export function comparison({ before, request }) {
  const nodes = [];
  if (before) {
    const written = h("u", {}, visible(plain(before.steps)));
    const space = request.chat ? " " : "";
    const text = [h("b", {}, "With all heads: "), visible(request.text), space, written];
    nodes.push(h("p", { class: "before" }, text));
  }
  if (countOff(request.off)) {
    nodes.push(h("p", { class: "after" }, `Without ${headNames(request.off)}:`));
  }
  return nodes;
}
