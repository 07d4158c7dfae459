/**
 * The similarity (CKA) of the layers of one model, or of two, as a heat map with the first layers
 * at the bottom left.
 */

import { HeatMap, whole } from "../map.js";

export class SimilarityGrid extends HeatMap {
  constructor() {
    super({ fixed: 1, tall: 300, what: "CKA" });
  }

  // rows and columns: { model, layers }; values: { cka, error }
  compare(rows, columns, values) {
    Object.assign(this, { between: [rows.model, columns.model], error: values.error.toReversed() });
    this.call(
      rows.model === columns.model && rows.layers === columns.layers
        ? `Within ${rows.model}`
        : `${rows.model} and ${columns.model}`,
      [rows.model, columns.model],
    );
    this.show(whole(rows.layers.toReversed(), columns.layers, values.cka.toReversed(), 1));
  }

  tell(at) {
    const value = at && this.value(...at);
    const [one, two] = this.between;
    this.note.textContent = value === null
      ? " "
      : `${this.source.rows[at[0]]} of ${one} and ${this.source.keys[at[1]]} of ${two}: ${
        value.toFixed(2)
      } ± ${this.error[at[0]][at[1]].toFixed(2)}`;
  }
}
