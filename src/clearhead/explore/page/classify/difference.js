/** The difference of what two panes of the view Classify show. */

import { ImageMap } from "../images/image_map.js";
import { total } from "../numbers.js";

/** Numbers of both signs, with 0 in the middle of the colours. */
export class DifferenceMap extends ImageMap {
  ends() {
    const most = this.most();
    return [-most, most];
  }
}

// Rows of numbers as multiples of the mean of their absolute values.
function relative(values) {
  const all = values.flat();
  const mean = total(all.map(Math.abs)) / all.length || 1;
  return values.map((row) => row.map((x) => x / mean));
}

// The token whose attention a pane shows.
const place = (pane) => pane.group && pane.group.rows.names[pane.query];

/** Why there is no difference place by place; "" if there is one. */
export function obstacleTo(left, right) {
  const [a, b] = [left.shown, right.shown];
  const sameUnit = a.unit === b.unit;
  const sameChannels = left.state.model === right.state.model && a.title === b.title;
  if (sameUnit && a.channel !== undefined && !sameChannels) {
    return "Channels of different models or stages respond to different things: there is no difference patch by patch.";
  }
  if (!sameUnit && (a.saliency || b.saliency)) {
    return "The two maps are of different kinds: there is no difference place by place.";
  }
  if (!sameUnit) {
    return "Attention weights and activations are not the same: there is no difference patch by patch.";
  }
  const [first, second] = [a, b].map(({ grid }) => grid.join(" × "));
  if (first === second) return "";
  return `The grids are ${first} and ${second}: there is no difference patch by patch.`;
}

/** What to keep in mind when reading the difference. */
export function caution(left, right) {
  if (place(left) !== place(right)) {
    return `The left is of ${place(left)}, the right of ${place(right)}.`;
  }
  if (left.state.image !== right.state.image) return "The two images are not the same.";
  if (!left.shown.saliency) return "";
  return "Each map is divided by the mean of its absolute values, as the scores of two classes or models have different scales.";
}

/** Right minus left, cell by cell. Maps of saliency have scales of their own, and are relative. */
export function differenceOf(left, right) {
  const values = ({ shown }) => (shown.saliency ? relative(shown.values) : shown.values);
  const [before, after] = [values(left), values(right)];
  return before.map((row, y) => row.map((x, i) => after[y][i] - x));
}
