/** What the view Classify can show of a model: each attention, feature maps, and saliency. */

import { choose } from "../controls.js";
import { METHODS, SALIENCY } from "../images/explanation.js";

/**
 * the value of `group` for feature maps; otherwise SALIENCY, or the name of a group of attentions
 */
export const FEATURES = "features";

const ORDERS = [
  ["strength", "strongest first"],
  ["number", "by number"],
];

const isSelf = ({ name }) => name === "self";

function groupName({ name }) {
  if (name === "self") return "self-attention";
  if (name === "pool") return "attention pooling";
  return `attention after ${name.replace("stage", "stage ")}`;
}

/** What is shown of a model at first. */
export function usualGroup({ groups, features }) {
  if (groups[0] && isSelf(groups[0])) return groups[0].name;
  return features.length ? FEATURES : (groups[0]?.name ?? "");
}

/** The methods of saliency that fit a model, as [name, title]. */
export function fittingMethods({ groups }) {
  const attends = groups.some(isSelf);
  const all = Object.entries(METHODS).filter(([, { attention }]) => !attention || attends);
  return all.map(([name, { title }]) => [name, title]);
}

/**
 * The menus of one inspection. change(state, push): takes a changed state; push: as a new entry of
 * the history
 */
export function choiceMenus({ look, classes }, state, change) {
  const shown = look.groups.map((group) => [group.name, groupName(group)]);
  if (look.features.length) shown.push([FEATURES, "feature maps"]);
  if (classes) shown.push([SALIENCY, "saliency"]);
  const showOther = (group) => {
    const stage = look.features[state.stage] ? state.stage : look.features.length - 1;
    change({ group, layer: null, head: null, at: null, stage }, true);
  };
  const menus = [choose("shown", shown, state.group, showOther, { name: "shown" })];
  const first = { channel: null, page: 0 };
  if (state.group === FEATURES) {
    const stages = look.features.map(({ name, grid }, i) => [i, `${name}, ${grid.join(" × ")}`]);
    const stage = (to) => change({ stage: Number(to), ...first });
    const order = (to) => change({ order: to, ...first });
    menus.push(
      choose("stage", stages, state.stage, stage, { name: "stage" }),
      choose("channels", ORDERS, state.order, order, { name: "order" }),
    );
  }
  if (state.group === SALIENCY) {
    const method = (to) => change({ method: to }, true);
    menus.push(choose("method", fittingMethods(look), state.method, method, { name: "method" }));
  }
  return menus;
}
