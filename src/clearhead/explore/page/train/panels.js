/** The plots of chosen runs: [{ title, unit, log, lines }]. */

import { equal } from "../figures/plot.js";
import { apart, plainName, titleOf, unique, unitOf, words } from "./units.js";

// Numbers of the optimiser by their prefix (of several players, lr_NAME): title, unit, whether the
// axis is logarithmic.
const OPTIMISER = [
  ["lr", "Learning rate", "learning rate", false],
  ["norm", "Norm of the gradient", "L2 norm", true],
];

/**
 * Each loss and its validation, other measurements, other numbers, then the optimiser. Runs whose
 * units differ have panels of their own. series: by run and by the name of a number, points [step,
 * value]; colours: by run
 */
export function lossPanels(runs, series, colours) {
  const recorded = unique(runs.flatMap((run) => Object.keys(series[run.id] ?? {})));
  const ofOptimiser = (name) =>
    OPTIMISER.some(([prefix]) => name === prefix || name.startsWith(`${prefix}_`));
  const losses = unique(runs.flatMap((run) => run.losses)).flatMap((loss) => [
    loss,
    `valid_${loss}`,
  ]);
  const rest = recorded.filter((name) => !losses.includes(name));
  const valid = rest.filter((name) => name.startsWith("valid_"));
  const others = rest.filter((name) => !name.startsWith("valid_") && !ofOptimiser(name));
  const drawn = [...losses.filter((name) => recorded.includes(name)), ...valid, ...others];
  const measured = drawn.flatMap((name) => {
    const having = runs.filter((run) => series[run.id]?.[name]);
    const units = unique(having.map((run) => unitOf(run, name)));
    return units.map((unit) => {
      const own = having.filter((run) => unitOf(run, name) === unit);
      const several = units.length > 1;
      const panel = { ...naming(name, unit, several, own), log: true };
      // shares and scores end at 1, and other numbers may be anything
      if (others.includes(name) || /^(share|score)/.test(unit)) panel.log = false;
      if (name.endsWith("accuracy")) panel.log = false;
      const line = (run) => {
        const points = series[run.id][name];
        return { name: run.name, run: run.id, colour: colours[run.id], points };
      };
      return { ...panel, lines: own.map(line) };
    });
  });
  const optimiser = OPTIMISER.map((entry) =>
    optimiserPanel(entry, runs, recorded, series, colours)
  );
  return [...measured, ...optimiser.filter(({ lines }) => lines.length)];
}

function naming(name, unit, several, runs) {
  const unknown = several ? "unit unknown" : plainName(name);
  const title = several ? `${titleOf(name)} (${unit || "unit unknown"})` : titleOf(name);
  return { title, unit: (unit || unknown) + apart(runs, unit) };
}

function optimiserPanel([prefix, title, unit, log], runs, recorded, series, colours) {
  const names = recorded.filter((name) => name === prefix || name.startsWith(`${prefix}_`));
  const linesOf = (run) => {
    const own = names.filter((name) => series[run.id]?.[name]);
    const byPlayer = own.map((name) => [name.slice(prefix.length + 1), series[run.id][name]]);
    return players(byPlayer).map(([player, points], dash) => {
      const parts = runs.length > 1 || !player ? [run.name, player] : [player];
      const name = parts.filter(Boolean).join(": ");
      return { name, run: run.id, colour: colours[run.id], dash, points };
    });
  };
  const lines = runs.flatMap(linesOf);
  const together = lines.length === 1 && lines[0].name === "all players";
  return { title: together ? `${title} (all players)` : title, unit, log, lines };
}

// The lines of players: one for all if they are equal.
function players(lines) {
  const alike = lines.length > 1 && lines.every(([, points]) => equal(points, lines[0][1]));
  if (alike) return [["all players", lines[0][1]]];
  return lines.map(([player, points]) => [words(player), points]);
}
