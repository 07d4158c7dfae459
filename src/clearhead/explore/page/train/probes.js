/** The plots of what is measured inside a network: statistics of every head, and of every block. */

import { capital, unique } from "./units.js";

/** Statistics of heads: name in a record, title, unit. */
export const STATISTICS = [
  ["entropy", "entropy of the weights", "nats"],
  ["distance", "mean distance to the keys", "tokens"],
  ["sink", "weight on the first token", "share of the weight"],
];

/** The records of probes as [[player, [[step, record], ...]], ...]; of one network, "". */
export function probesOf(records) {
  const probed = records.filter(({ inside }) => inside && Object.keys(inside).length);
  const inside = probed.map((record) => [record.step, byPlayer(record.inside)]);
  const players = unique(inside.flatMap(([, all]) => Object.keys(all)));
  return players.map((player) => {
    const own = inside.filter(([, all]) => all[player]);
    return [player, own.map(([step, all]) => [step, all[player]])];
  });
}

function byPlayer(inside) {
  const nested = (one) => one && typeof one === "object" && !Array.isArray(one);
  const several = !inside.gradient && Object.values(inside).every(nested);
  return several ? inside : { "": inside };
}

const names = (looks) => unique(looks.flatMap(([, look]) => Object.keys(look)));
const isOf = (kind) => (name) => name.endsWith(`.${kind}`);

/** Whether a network has statistics of heads. */
export const hasHeads = ([, looks]) =>
  names(looks).some((name) => STATISTICS.some(([kind]) => isOf(kind)(name)));

/** One plot per layer of one kind of statistic, with a line per head. */
export function headPanels([, looks], kind, prefix) {
  const [, title, unit] = STATISTICS.find(([id]) => id === kind);
  return names(looks)
    .filter(isOf(kind))
    .map((name) => {
      const heads = looks.find(([, look]) => look[name])?.[1][name] ?? [];
      const lines = heads.map((_, head) => {
        const points = looks.map(([step, look]) => [step, look[name]?.[head] ?? null]);
        return { name: `head ${head}`, points };
      });
      const layer = name.slice(0, -kind.length - 1);
      return { title: `${prefix}${layer}, ${title}`, unit, log: false, tall: 180, lines };
    });
}

/** The gradients and the outputs of every block. */
export function blockPanels([, looks], prefix) {
  const blocks = unique(looks.flatMap(([, look]) => Object.keys(look.gradient ?? {})));
  const isNumber = (name) => looks.some(([, look]) => typeof look[name] === "number");
  const gradients = blocks.map((block) => {
    const points = looks.map(([step, look]) => [step, look.gradient?.[block] ?? null]);
    return { name: block === "rest" ? "all else" : block, points };
  });
  const outputs = names(looks)
    .filter(isNumber)
    .map((name) => {
      return { name, points: looks.map(([step, look]) => [step, look[name] ?? null]) };
    });
  const title = (text) => (prefix ? `${prefix}${text}` : capital(text));
  const panels = [
    { title: title("norm of the gradient of every block"), unit: "L2 norm", lines: gradients },
    { title: title("output of every block"), unit: "root mean square", lines: outputs },
  ];
  return panels.filter(({ lines }) => lines.length).map((panel) => ({ ...panel, log: true }));
}
