/** Position encodings: the vector of each position, and the similarity of any two. */

import { get } from "../api.js";
import { HeatMap, whole } from "../attention/heat_map.js";
import { choose, slide } from "../controls.js";
import { h, later } from "../dom.js";
import { ImageInput } from "../images/image_input.js";
import { ImageMap } from "../images/image_map.js";
import { KINDS } from "./options.js";

const SIDE = 14; // most patches per side

const LEAD = {
  sinusoid:
    "The sinusoidal encoding adds a vector to each input: sines and cosines of different wavelengths. Nearby positions get similar vectors.",
  rotary:
    "Rotary positions rotate pairs of columns of queries and keys by angles that grow with position. The score of a query and a key then depends on their distance only.",
  alibi:
    "ALiBi subtracts a bias from each score: the distance of query and key times a slope. Each head has its own slope.",
  sincos2d:
    "A patch of an image has two positions, its row and its column. Half of the vector encodes each.",
};

export class Positions {
  constructor(view) {
    this.view = view;
    this.vectors = new HeatMap({
      title: "Position vectors: one row per position",
      signed: true,
      tall: 380,
      axes: ["position", "dimension"],
    });
    this.alike = new HeatMap({
      title: "Similarity of two positions",
      signed: true,
      tall: 380,
      axes: ["position", "position"],
      what: "similarity",
    });
    this.patch = new ImageMap({
      title: "Similarity of each patch with the chosen patch",
      size: 380,
      what: "similarity",
      pick: (y, x) => {
        this.view.options.patch = [y, x];
        this.view.remember();
        this.choosePatch(y, x);
      },
    });
    this.kind = choose(
      "positions",
      KINDS,
      "sinusoid",
      (kind) => {
        this.view.options.kind = kind;
        this.sliders();
        this.compute();
      },
      { id: "kind" },
    );
    this.sizes = h("span", { class: "row" });
    this.what = h("p", { class: "what" });
    this.drop = new ImageInput({
      text: "An image behind the patches",
      found: ({ image }) => {
        this.patch.image = image;
        this.draw();
      },
      fail: (trouble) => this.view.activity.fail(trouble),
    });
    this.patch.root.append(this.drop.root);
    this.maps = h("div", { class: "two" }, this.vectors.root, this.alike.root, this.patch.root);
    this.root = h(
      "section",
      { class: "panel" },
      h("div", { class: "row" }, this.kind, this.sizes),
      this.what,
      this.maps,
    );
  }

  lead() {
    return [
      "Self-attention without positions treats its inputs as a set: permute the inputs, and the outputs are permuted in the same way. Position encodings give each input its place.",
    ];
  }

  // The options that the chosen kind has.
  asked() {
    const { kind, width, length, base, head } = this.view.options;
    const flat = kind === "sincos2d";
    return {
      kind,
      width: width - (width % 4),
      length: flat ? Math.min(length, SIDE) : length,
      base,
      head,
    };
  }

  sliders() {
    const again = later(() => this.compute(), 40);
    const options = this.view.options;
    const set = (key) => (value) => {
      options[key] = value;
      again();
    };
    const { kind, width, length } = this.asked();
    this.kind.querySelector("select").value = kind;
    const sliders = [];
    if (kind === "alibi") {
      const range = { min: 0, max: 7, step: 1 };
      sliders.push(slide("head", { ...range, value: options.head, change: set("head") }));
    } else {
      const range = { min: 8, max: 256, step: 4 };
      sliders.push(slide("width", { ...range, value: width, change: set("width") }));
    }
    const flat = kind === "sincos2d";
    const range = flat ? { min: 4, max: SIDE, step: 1 } : { min: 8, max: 256, step: 1 };
    const name = flat ? "patches per side" : "positions";
    sliders.push(slide(name, { ...range, value: length, change: set("length") }));
    if (kind !== "alibi") {
      sliders.push(
        slide("base", {
          min: 1,
          max: 5,
          step: 0.1,
          value: Math.log10(options.base),
          show: (x) => Math.round(10 ** x).toLocaleString("en"),
          change: (x) => set("base")(Math.round(10 ** x)),
        }),
      );
    }
    this.sizes.replaceChildren(...sliders);
  }

  open() {
    this.sliders();
    this.compute(false);
  }
  close() {}

  // changed: by the user, and so to be written into the address
  async compute(changed = true) {
    if (changed) this.view.remember();
    const asked = this.asked();
    this.asking?.abort();
    const own = (this.asking = new AbortController());
    try {
      const answer = await get("positions", asked, own.signal);
      if (this.asking !== own) return;
      this.found = { asked, answer };
      this.maps.hidden = false;
      this.draw();
      this.view.settled();
    } catch (trouble) {
      if (this.asking !== own || trouble.name === "AbortError") return;
      this.maps.hidden = Boolean(!trouble.offline || !this.found);
      this.view.activity.fail(trouble);
    }
  }

  titles() {
    const { kind, head } = this.found.asked;
    return {
      sinusoid: [
        "Position vectors: one row per position",
        ["position", "dimension"],
        "Similarity of two positions: dot product of their vectors / (width / 2)",
        ["position", "position"],
      ],
      rotary: [
        "A vector of ones, rotated to each position: one row per position",
        ["position", "dimension"],
        "Score of two rotated vectors of ones / width",
        ["query position", "key position"],
      ],
      alibi: [
        "Bias of the last query: one column per head",
        ["key position", "head"],
        `Bias of each query and key, head ${head}: −${2 ** -(head + 1)} · distance`,
        ["query position", "key position"],
      ],
      sincos2d: [
        "Position vectors: one row per patch (row, column)",
        ["patch", "dimension"],
        "",
        ["", ""],
      ],
    }[kind];
  }

  draw() {
    const {
      asked: { kind, length },
      answer,
    } = this.found;
    const flat = kind === "sincos2d";
    const [first, axes, second, pair] = this.titles();
    const names = answer.vectors.map((_, i) =>
      flat ? `${Math.floor(i / length)}, ${i % length}` : String(i)
    );
    this.what.textContent = LEAD[kind];
    this.vectors.call(first, axes);
    this.vectors.show(
      whole(
        names,
        answer.vectors[0].map((_, i) => String(i)),
        answer.vectors,
      ),
    );
    if (!flat) {
      this.alike.call(second, pair);
      this.alike.show(whole(names, names, answer.similarity));
    }
    this.alike.root.hidden = flat;
    this.patch.root.hidden = !flat;
    if (!flat) return;
    const { patch } = this.view.options;
    const known = patch && Math.max(...patch) < length;
    this.choosePatch(...(known ? patch : [Math.floor(length / 2), Math.floor(length / 3)]));
  }

  choosePatch(y, x) {
    const side = Math.round(Math.sqrt(this.found.answer.similarity.length));
    const row = this.found.answer.similarity[y * side + x];
    this.patch.call(`Similarity of each patch with the patch in row ${y}, column ${x}`);
    this.patch.show({
      overlay: Array.from({ length: side }, (_, i) => row.slice(i * side, (i + 1) * side)),
      at: [y, x],
    });
  }

  caption() {
    const { kind, width, length, base, head } = this.asked();
    const name = KINDS.find(([id]) => id === kind)[1];
    const sizes = [
      kind === "alibi" ? `head ${head} of 8` : `width ${width}, base ${base.toLocaleString("en")}`,
      kind === "sincos2d" ? `${length} × ${length} patches` : `${length} positions`,
    ];
    return {
      title: `Position encoding: ${name}`,
      source: `${sizes.join(", ")}. ${LEAD[kind]}`,
      file: `build-positions-${kind}`,
    };
  }

  figures() {
    if (!this.found) return [];
    const flat = this.found.asked.kind === "sincos2d";
    return [this.vectors.svg(), (flat ? this.patch : this.alike).svg()];
  }

  data() {
    return {
      options: this.found?.asked,
      result: this.found?.answer,
      ...(this.found?.asked.kind === "sincos2d" ? { patch: this.patch.at } : {}),
    };
  }
}
