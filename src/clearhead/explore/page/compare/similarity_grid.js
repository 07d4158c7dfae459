/**
 * The similarity (CKA) of the layers of one model, or of two, as a heat map with the first layers
 * at the bottom left.
 */

import { HeatMap, whole } from "../attention/heat_map.js";

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
    if (value === null) {
      this.note.textContent = " ";
      return;
    }
    const [row, key] = at;
    const [one, two] = this.between;
    const layers = `${this.source.rows[row]} of ${one} and ${this.source.keys[key]} of ${two}`;
    const error = this.error[row][key].toFixed(2);
    this.note.textContent = `${layers}: ${value.toFixed(2)} ± ${error}`;
  }
}
