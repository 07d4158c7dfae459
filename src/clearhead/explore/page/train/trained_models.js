/** The models of runs: links to the views that use them, or why they cannot be used. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { capital, titleOf } from "./units.js";

const OPEN = {
  translate: "Translate with this model",
  write: "Write with this model",
  read: "Read with this model",
};

// Why a run has no model, by its state.
function without(run) {
  if (run.state === "running") return null;
  if (run.state === "finished") return `The folder of ${run.name} has no model.`;
  if (run.state === "stopped") {
    return `${run.name} stopped before its last step: the command that started it resumes it.`;
  }
  const advice =
    "Train it again in another folder with other settings, such as a smaller learning rate.";
  return `${run.name} failed: ${run.problem}. ${advice}`;
}

/** A line about the model of a run; null if there is nothing to say. */
export async function modelLine(run) {
  if (run.example) {
    const command = h("code", {}, `clearhead train ${run.example}`);
    return ["The model of this example does not ship: ", command, " trains it."];
  }
  if (!run.finished) return without(run);
  const own = await get("models/one", { model: `run-${run.id}` });
  if (!own.kinds.length) {
    const why = own.error ?? own.why ?? "it neither translates nor writes nor reads";
    const what = own.error ? "cannot be opened" : "fits no view";
    return `The model of ${run.name} ${what}: ${why.replace(/\.$/, "")}.`;
  }
  const links = own.kinds.map((kind) => {
    const text = OPEN[kind] ?? `Open in ${capital(kind)}`;
    return h("a", { class: "chip", href: `#${kind}?model=${own.id}` }, text);
  });
  return [`The model of ${run.name}${stepKept(run)}: `, links];
}

// Of which step the model is, if not of the last one.
function stepKept(run) {
  if (run.model_step === null || run.model_step >= run.step) return "";
  const step = ` is of step ${run.model_step.toLocaleString("en")}`;
  if (!run.best) return step;
  return `${step}, the best by ${titleOf(run.best).replace("Validation: ", "validation ")}`;
}
