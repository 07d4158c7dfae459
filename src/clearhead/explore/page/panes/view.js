/**
 * The base of all views: a heading, one sentence, its part of the address, figures and data to
 * save.
 *
 * One instance lives for the whole visit, so leaving a view and coming back keeps what it shows.
 */

import { Activity } from "../activity.js";
import { h } from "../dom.js";

/** A subclass overrides what it has. */
export class View {
  // lead: one sentence that says what to see
  constructor(frame, name, title, lead) {
    Object.assign(this, { frame, name, title });
    this.heading = h(
      "div",
      { class: "heading" },
      h("h1", {}, title),
      h("p", { class: "lead" }, lead),
    );
    this.activity = new Activity();
    this.root = h("div", { class: `view ${name}` }, this.heading);
  }

  // Called whenever the view is opened, with the state in the address; {}: as it was left, or its
  // example.
  enter(_state) {}

  // Called when another view is opened.
  leave() {}

  // The state for the address; null and "" are left out.
  state() {
    return {};
  }

  // Write the state into the address; push: as a new entry of the history, so that Back leads to
  // the one before.
  remember(push = false) {
    this.frame.remember(this, push);
  }

  // How long a link to this state works, if not always.
  lasts() {
    return "";
  }

  // What the picture of this view is called, and where its numbers come from.
  caption() {
    return { title: this.title, source: "", file: this.name };
  }

  // The figures as SVG elements.
  figures() {
    return [];
  }

  // Everything that is shown, in full, as plain values; may be a promise.
  data() {
    return {};
  }
}
