/** The models of a menu, by their names for readers. */

// The class of a model -> its name for readers; others are their own.
const FAMILIES = {
  RNNSeq2Seq: "RNN",
  GPT: "language model",
  BERT: "encoder",
  ViT: "vision transformer",
  Captioner: "captioner",
};

/** The class of a model, by its name for readers. */
export const familyName = ({ family }) => FAMILIES[family] ?? family;

/** " · 12.3M": the number of parameters of a model, if it is known. */
export function sizeOf({ parameters }) {
  if (!parameters) return "";
  const millions = parameters >= 1e6;
  return ` · ${millions ? `${(parameters / 1e6).toFixed(1)}M` : `${Math.ceil(parameters / 1e3)}k`}`;
}

/**
 * Models as the options of a menu, those of runs in a group of their own. more: what follows the
 * name and the family
 */
export function grouped(all, more = () => "") {
  const option = (model) => [model.id, `${model.name} · ${familyName(model)}${more(model)}`];
  const others = all.filter((model) => !model.trained).map(option);
  const trained = all.filter((model) => model.trained).map(option);
  return trained.length ? [...others, { label: "Trained here", options: trained }] : others;
}
