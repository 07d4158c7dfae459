/**
 * ImagePane: a pane whose input is an image. ImageView: a view of such panes, which look at the
 * same image.
 */

import { floats, perLayer } from "./api.js";
import { sentence } from "./activity.js";
import { h } from "./dom.js";
import { HeadGrid } from "./heads.js";
import { ImageInput } from "./image.js";
import { Pane, PanedView } from "./pane.js";

export const NOTHING = "none"; // the image of an address after a file that could not be used
const KEPT = 64; // arrays of a result that are not requested again

/**
 * A subclass also has: static SHIPPED, names of shipped models, of which the first opens unless
 * another model was given;
 * EXAMPLE, the state that the view opens with; group, the attention that is shown; draw().
 */
export class ImagePane extends Pane {
  static INPUT = "image";
  static EMPTY = "Choose an image.";

  // means: entries of COLOURINGS that have another meaning here
  constructor(view, means) {
    super(view);
    this.chips.setAttribute("aria-label", "Example images");
    this.drop = new ImageInput({
      found: ({ id, name }) => {
        if (name) this.view.names[id] = name;
        this.view.give(id);
      },
      fail: (trouble) => this.view.refuse(trouble),
    });
    this.heads = new HeadGrid({
      means,
      pick: (layer, head) => {
        Object.assign(this.state, { layer, head });
        this.changed();
      },
      recolour: (to) => {
        this.state.colouring = to;
        this.view.remember();
        this.measure();
      },
    });
    this.heads.own = true;
  }

  // Without a state in the address: the example, if its model opens.
  async enter(given) {
    if (Object.keys(given).length) {
      return super.enter(given.image === NOTHING ? { ...given, image: "" } : given);
    }
    const mine = (this.entering = {});
    const { EXAMPLE } = this.constructor;
    await this.ready().catch(() => {}); // super.enter asks again, and shows the problem
    if (this.entering === mine) {
      return super.enter(this.state.model === EXAMPLE.model ? EXAMPLE : given);
    }
  }

  usual(all) {
    const { SHIPPED } = this.constructor;
    return SHIPPED.includes(all[0]?.id)
      ? all.find((one) => one.id === SHIPPED.find((id) => all.some((two) => two.id === id)))
      : all[0];
  }

  // The name of an image: of the uploaded file, or of the example.
  named(image = this.state.image) {
    return this.view.names[image] ?? image.replaceAll("-", " ");
  }

  suggest() {
    const ids = this.model?.examples ?? [];
    if (String(ids) !== this.offered) {
      this.chips.replaceChildren(
        ...ids.map((id) =>
          h(
            "button",
            {
              type: "button",
              class: "photo",
              "data-image": id,
              title: this.named(id),
              onclick: () => this.view.give(id),
            },
            h("img", {
              src: `/api/images/one?id=${id}`,
              alt: this.named(id),
              width: 38,
              height: 38,
            }),
          )
        ),
      );
    }
    this.offered = String(ids);
    for (const one of this.chips.children) {
      one.setAttribute("aria-pressed", one.dataset.image === this.state.image);
    }
  }

  // Another image.
  give(id) {
    this.input.value = id;
    this.run();
    this.suggest();
  }

  // An image that cannot be used: nothing of the earlier one stays on screen.
  refuse(trouble) {
    this.activity.cancel();
    this.clear();
    Object.assign(this, { result: null, key: null });
    this.input.value = "";
    this.state.image = NOTHING;
    this.suggest();
    this.fail(trouble);
  }

  again() {
    this.results.clear();
    this.run(false);
  }
  changed(push = false) {
    this.view.remember(push);
    this.draw();
  }

  // Show numbers of another inspection.
  open(look) {
    this.controller?.abort();
    this.controller = new AbortController();
    Object.assign(this, { look, numbers: new Map(), told: {} });
  }

  // Numbers of this inspection, requested once.
  async ask(path, given) {
    const { look, numbers } = this;
    const key = JSON.stringify([path, given]);
    const found = numbers.get(key) ??
      (await floats(`looks/${path}`, { look: look.id, ...given }, this.controller.signal));
    numbers.delete(key);
    numbers.set(key, found);
    if (numbers.size > KEPT) numbers.delete(numbers.keys().next().value);
    return found;
  }

  // The head grid with maps over the image: `all` has the weights of one query (layers, heads,
  // keys). It is drawn again only if it would look different.
  drawHeads(all, colourings) {
    const { group, heads, state } = this;
    const { special, grid } = group.columns;
    const first = special.length;
    const same = heads.maps?.of === all &&
      heads.colouring === state.colouring &&
      String(heads.at) === String([state.layer, state.head]) &&
      !heads.root.hidden;
    if (!same) {
      heads.colouring = state.colouring;
      heads.offer(colourings);
      const [layers, per, keys] = all.shape;
      const n = keys - first;
      const maps = {
        of: all,
        shape: [layers, per, ...grid],
        data: Float32Array.from(
          { length: layers * per * n },
          (_, i) => all.data[Math.floor(i / n) * keys + first + (i % n)],
        ),
      };
      Object.assign(heads, { layers, heads: per, maps, told: this.told[group.name] ?? [] });
      heads.show(layers, per, [state.layer, state.head]);
      [state.layer, state.head] = heads.at;
      state.colouring = heads.colouring;
    }
    this.measure();
  }

  // Request the statistics by which the head grid is coloured.
  async measure() {
    const { group, look, heads } = this;
    const { signal } = this.controller;
    if (heads.colouring === "map" || this.told[group.name]) return;
    const { told: all } = this;
    const told = (all[group.name] = []);
    try {
      for await (const line of perLayer("heads", look.id, group.name, signal)) {
        told[line.layer] = line;
        if (this.group === group) {
          heads.told = told;
          heads.draw();
        }
      }
    } catch (trouble) {
      delete all[group.name];
      if (trouble.name !== "AbortError") {
        heads.legend.textContent = sentence(trouble);
      }
    }
  }

  // The chosen heads as a part of a file's name.
  headName() {
    const { layer, head } = this.state;
    return layer === null ? "all-heads" : `layer${layer}${head === null ? "" : `-head${head}`}`;
  }
}

/** The mean of weights (layers, heads, keys) over the layers and heads that are not chosen. */
export function mean({ data, shape: [layers, heads, keys] }, layer, head) {
  const sums = new Float32Array(keys);
  const rows = [];
  for (let l = 0; l < layers; l++) {
    for (let e = 0; e < heads; e++) {
      if ((layer === null || l === layer) && (head === null || e === head)) {
        rows.push(data.subarray((l * heads + e) * keys, (l * heads + e + 1) * keys));
      }
    }
  }
  for (const row of rows) {
    row.forEach((x, i) => {
      sums[i] += x / rows.length;
    });
  }
  return sums;
}

export const shaped = (data, [ny, nx]) =>
  Array.from({ length: ny }, (_, y) => Array.from(data.subarray(y * nx, (y + 1) * nx)));

export class ImageView extends PanedView {
  get names() {
    return (this.uploaded ??= {});
  } // of uploaded images, by id

  // The same model with other weights, or any other one.
  partner(pane) {
    return (
      super.partner(pane) ??
        Object.values(pane.known ?? {}).find((one) => one.id !== pane.model?.id)
    );
  }

  // A file that cannot be used is refused by all panes; Back leads to the image before it.
  refuse(trouble) {
    for (const pane of this.panes) pane.refuse(trouble);
    this.compare();
    this.remember(true);
  }

  lasts() {
    return this.panes.some(
        ({ state, model }) =>
          state.image && state.image !== NOTHING && !model?.examples.includes(state.image),
      )
      ? "The uploaded image is kept in the memory of this server only: after a restart the link does not show it."
      : "";
  }

  // Another image, for all panes.
  give(id) {
    for (const pane of this.panes) pane.give(id);
  }
}
