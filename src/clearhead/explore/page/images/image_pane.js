/**
 * ImagePane: a pane whose input is an image. ImageView: a view of such panes, which look at the
 * same image.
 */

import { sentence } from "../activity.js";
import { floats, perLayer } from "../api.js";
import { HeadGrid } from "../attention/head_grid.js";
import { button } from "../controls.js";
import { h } from "../dom.js";
import { Pane } from "../panes/pane.js";
import { PanedView } from "../panes/paned_view.js";
import { ImageInput } from "./image_input.js";

const NOTHING = "none"; // the image of an address after a file that could not be used
const KEPT = 64; // arrays of a result that are not requested again
const UPLOADED =
  "The uploaded image is kept in the memory of this server only: after a restart the link does not show it.";

/**
 * A subclass also has: static SHIPPED, names of shipped models, of which the first opens unless
 * another model was given; EXAMPLE, the state that the view opens with; group, the attention that
 * is shown; draw().
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

  // The first shipped model that is here, unless the explorer was started with another one.
  usual(all) {
    const { SHIPPED } = this.constructor;
    if (!SHIPPED.includes(all[0]?.id)) return all[0];
    const first = SHIPPED.find((id) => all.some((model) => model.id === id));
    return all.find((model) => model.id === first);
  }

  // The name of an image: of the uploaded file, or of the example.
  named(image = this.state.image) {
    return this.view.names[image] ?? image.replaceAll("-", " ");
  }

  suggest() {
    const ids = this.model?.examples ?? [];
    if (String(ids) !== this.offered) {
      this.chips.replaceChildren(...ids.map((id) => this.example(id)));
    }
    this.offered = String(ids);
    for (const chip of this.chips.children) {
      chip.setAttribute("aria-pressed", chip.dataset.image === this.state.image);
    }
  }

  example(id) {
    const name = this.named(id);
    const src = `/api/images/one?id=${id}`;
    const image = h("img", { src, alt: name, width: 38, height: 38 });
    const more = { class: "photo", "data-image": id, title: name };
    return button(image, () => this.view.give(id), more);
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
    const unchanged = heads.maps?.of === all &&
      heads.colouring === state.colouring &&
      String(heads.at) === String([state.layer, state.head]) &&
      !heads.root.hidden;
    if (!unchanged) {
      const [layers, count] = all.shape;
      heads.colouring = state.colouring;
      heads.offer(colourings);
      const maps = this.headMaps(all);
      Object.assign(heads, { layers, heads: count, maps, told: this.told[group.name] ?? [] });
      heads.show(layers, count, [state.layer, state.head]);
      [state.layer, state.head] = heads.at;
      state.colouring = heads.colouring;
    }
    this.measure();
  }

  // The weights on patches alone, without those on special tokens.
  headMaps(all) {
    const { special, grid } = this.group.columns;
    const [layers, heads, keys] = all.shape;
    const first = special.length;
    const patches = keys - first;
    const weight = (_, i) => all.data[Math.floor(i / patches) * keys + first + (i % patches)];
    const data = Float32Array.from({ length: layers * heads * patches }, weight);
    return { of: all, shape: [layers, heads, ...grid], data };
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
}

/** A view of such panes: an image is for all of them. */
export class ImageView extends PanedView {
  names = {}; // of uploaded images, by id

  // The same model with other weights, or any other one.
  partner(pane) {
    const others = Object.values(pane.known ?? {});
    return super.partner(pane) ?? others.find(({ id }) => id !== pane.model?.id);
  }

  // A file that cannot be used is refused by all panes; Back leads to the image before it.
  refuse(trouble) {
    for (const pane of this.panes) pane.refuse(trouble);
    this.compare();
    this.remember(true);
  }

  lasts() {
    const uploaded = ({ state: { image }, model }) =>
      image && image !== NOTHING && !model?.examples.includes(image);
    return this.panes.some(uploaded) ? UPLOADED : "";
  }

  // Another image, for all panes.
  give(id) {
    for (const pane of this.panes) pane.give(id);
  }
}
