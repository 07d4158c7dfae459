/** What a saved file holds of a view of an image, as plain values. */

/** The weights of one token in the chosen heads, and in every head. */
export function savedAttention({ title, query, grid, weights, all }, group, heads) {
  const { name, rows, columns } = group;
  return {
    attention: name,
    title,
    query,
    queries: rows.names,
    keys: columns.names,
    special: columns.special,
    grid,
    weights,
    every_head: { shape: all.shape, weights: all.data },
    heads,
  };
}

/** The feature maps of the channels on screen. */
export function savedFeatures({ title, channel, channels, maps }, stage) {
  return { stage, title, channel, channels, shape: maps.shape, maps: maps.data };
}
