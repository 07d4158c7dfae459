/**
 * The steps of the guided path through the lectures: each opens a view in a given state. A view
 * that is added later adds its steps here.
 */

const link = (view, state) => `#${view}?${new URLSearchParams(state)}`;

// The view Build: `m` is what differs from its defaults.
function build(m = {}, panel = null) {
  const state = {};
  if (panel) state.panel = panel;
  if (Object.keys(m).length) state.m = JSON.stringify(m);
  return link("build", Object.keys(state).length ? state : { panel: "attention" });
}

/** title, address, two sentences, something to try */
export const STEPS = [
  [
    "Attention by hand",
    build(),
    "Three inputs become queries, keys and values; each query is compared with every key. A softmax turns the scores into weights, and the output is the weighted sum of the values.",
    "Point at any number to see its arithmetic. Then change a number of X.",
  ],
  [
    "The mask",
    build({ mask: "causal" }),
    "A decoder may not use later words. Their scores are set to −∞ before the softmax, so that their weights are exactly 0.",
    "Change the mask to a window of 2: now each input attends to its neighbours, before and after it.",
  ],
  [
    "Scaling",
    build({ score: "scaled" }),
    "Dot products grow with the width of the queries, and the softmax becomes nearly one-hot. Dividing by √dₖ keeps the weights soft and the gradients alive.",
    "Move the sharpness to 1000: attention becomes a dictionary lookup, in which equal scores share the weight.",
  ],
  [
    "Several heads",
    build({
      heads: 2,
      wq: [
        [1, 0, 1, 1, 0, 0],
        [1, 0, 0, 0, 0, 1],
        [0, 0, 1, 0, 1, 1],
        [0, 1, 1, 1, 0, 1],
      ],
      wk: [
        [0, 0, 1, 1, 1, 0],
        [1, 1, 0, 0, 1, 0],
        [0, 1, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
      ],
      wv: [
        [0, 2, 0, 0, 3, 0],
        [0, 3, 0, 1, 0, 3],
        [1, 0, 3, 1, 1, 0],
        [1, 1, 0, 0, 2, 0],
      ],
    }),
    "Each head has its own queries, keys and values and can attend to something else. The outputs of the heads are put side by side.",
    "Compare the weights of the two heads for input 1.",
  ],
  [
    "Order",
    build({ order: [1, 0, 2] }),
    "Without positions, self-attention treats its inputs as a set: permute them, and the outputs are permuted in the same way. Nothing else changes.",
    "Choose positions “sinusoid” and read what is said about the order below the matrices.",
  ],
  [
    "Positions",
    build({}, "positions"),
    "A sinusoidal encoding gives every position a vector of sines and cosines of different wavelengths. Nearby positions have similar vectors.",
    "Choose “rows and columns”, the encoding of image patches, and click a patch.",
  ],
  [
    "Memory and attention",
    build({}, "memory"),
    "A recurrent state that is multiplied by γ at every step loses its oldest inputs first. Attention reads any of them directly.",
    "Set γ to 1: the memory forgets nothing, and every input gets the same small share.",
  ],
  [
    "Alignment",
    link("translate", { model: "fr-en", text: "Je la mange." }),
    "While a translator writes a word, its cross-attention shows which source words it uses. French object pronouns stand before the verb, English ones after it: the lines cross.",
    "Point at a word of the translation, then translate a sentence of your own.",
  ],
  [
    "RNN and Transformer",
    link("translate", {
      model: "en-de-rnn",
      text: "A man in a red shirt is playing the guitar.",
      model2: "en-de",
      text2: "A man in a red shirt is playing the guitar.",
    }),
    "The attention of an RNN has one head in one layer, and works as an alignment. A Transformer spreads the same task over many heads and layers.",
    "Choose single heads on the right: which one resembles the RNN's alignment?",
  ],
  [
    "Writing",
    link("write", { model: "everyday", text: "The man", max_new: 24, seed: 1 }),
    "A language model turns the tokens so far into a probability for every next token, draws one, and repeats. The temperature sharpens or flattens these probabilities.",
    "Move the temperature and watch the candidates' bars.",
  ],
  [
    "The logit lens",
    link("write", { model: "everyday", text: "I don't know what you", inspect: 1 }),
    "Reading the next token from the output of every block shows how a prediction forms. Early blocks guess common words; later ones use the context.",
    "Choose other tokens and see at which block the final answer first appears.",
  ],
  [
    "Reading both ways",
    link("read", { model: "cloze", text: "She [MASK] to the store to buy some milk." }),
    "An encoder attends to the words after a token as well as to those before it. Trained to fill gaps, it predicts a masked word from both sides.",
    "Select another word, press “Insert a mask”, and read the guesses.",
  ],
  [
    "Patches as words",
    link("classify", { model: "vit-imagenette", image: "church", layer: 0, head: 1 }),
    "A vision transformer cuts an image into patches and reads them like words, with a class token before them. The output layer reads the class token alone; in this head of the first layer nearly all of its weight is on the church.",
    "Click a patch to see what it attends to, then choose heads of later layers.",
  ],
  [
    "Features of a CNN",
    link("classify", {
      model: "vit-cifar10",
      image: "cat",
      model2: "resnet-cifar10",
      image2: "cat",
    }),
    "Each channel of a convolutional network responds to one pattern wherever it occurs, and each stage has a coarser grid than the one before. A convolution combines neighbouring places only; attention compares all patches from the first layer on.",
    "On the right, choose the maps of the stem, then those of later stages.",
  ],
  [
    "Words that look",
    link("caption", { model: "captioner", image: "photographer" }),
    "A captioner writes a sentence about an image, and attends to a grid of places before every word. This one learned from 6,000 photographs of people, dogs and sport, and guesses at other images. The strip has one panel per word, all on one scale: bright where the decoder looked before it wrote the word.",
    "Press Play. Then choose single heads: which of them look at one place, and which at many?",
  ],
  [
    "Two captioners",
    link("caption", {
      model: "captioner-rnn",
      image: "photographer",
      at: 1,
      model2: "captioner",
      image2: "photographer",
      at2: 1,
    }),
    "The recurrent captioner looks at the image once per word, with one head. The Transformer looks in every layer, with several heads in each.",
    "Choose a word that both captions have, and read the difference of its maps below.",
  ],
  [
    "A word of your own",
    link("caption", {
      model: "captioner",
      image: "photographer",
      text: "a man with a camera",
      at: 4,
    }),
    "Attention depends on the words before a word, not on the word itself, so any first word of yours looks at the same places. Evidence depends on the word, as it is how likely the word is where the decoder sees one place alone: for “camera” most of it is around the camera.",
    "Replace “camera” by another word that it knows, such as dog or guitar, and compare the scores.",
  ],
  [
    "Switching heads off",
    link("write", {
      model: "everyday",
      text: "She told me that she was happy.",
      inspect: 1,
      colouring: "effect",
    }),
    "Setting the output of one head to zero shows what it contributes to a text: the change in log-probability of its tokens. Orange heads make this text likelier; without a blue one it would be likelier still.",
    "Click the head of the strongest orange, switch it off, and see which tokens need it; then write without it.",
  ],
  [
    "What speaks for a class",
    link("classify", {
      model: "vit-imagenette",
      image: "church",
      group: "saliency",
      method: "grad-cam",
      target: "church",
      region: JSON.stringify([26, 4, 116, 106]),
    }),
    "Attention says where a head takes its values from; saliency asks which pixels an answer depends on. Grad-CAM weights the features of one layer by the gradient of the class: for “church” most of it is on the building.",
    "Draw a rectangle around the tower alone and read its share. Then take the golf ball and occlusion: is it the ball that counts, or the grass around it?",
  ],
  [
    "A transformer and a CNN",
    link("compare", { model: "vit-cifar10", other: "resnet-cifar10" }),
    "Layers are alike if they tell the same images apart. The first layers of a vision transformer depend on nearly the whole image at once, and its heads attend near and far; a convolutional network starts with three pixels and widens its view layer by layer.",
    "Point at the grid in the middle: which layers of the one are most like the last layers of the other?",
  ],
  [
    "Where an answer comes from",
    link("write", {
      model: "everyday",
      text: "The children in the garden",
      inspect: 1,
      patch: JSON.stringify({ open: 1 }),
    }),
    "Two prompts differ in one word, and so does the verb that follows. Each cell puts one vector of the first prompt into the run on the second: where the answer comes back, that layer and token carry the difference.",
    "Follow the cells of the strongest blue: at which block does the number move from “children” to the last token? Then exchange single heads.",
  ],
];
