/**
 * The state of a view's work: idle, working, stopped or failed. Every form of the page has one.
 *
 * idle: nothing runs; what is on screen is a complete result, or nothing
 * working: work runs; the Stop button is shown
 * stopped: Stop was pressed; what was computed before can be inspected
 * failed: the problem is on screen, and no result
 */

import { button } from "./controls.js";
import { h } from "./dom.js";

/** The status line of some work, with its Stop button and its problem. */
export class Activity {
  // stopped: called after Stop, to show what was computed before; again: starts the work again,
  // offered after Stop or a problem
  constructor({ stopped = null, again = null } = {}) {
    this.after = stopped;
    this.controller = null;
    this.status = h("span", { class: "status", role: "status" });
    this.button = button("Stop", () => this.stop(), { class: "stop", hidden: true });
    const repeat = () => again();
    this.repeat = again && button("Start again", repeat, { class: "again", hidden: true });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    const parts = [this.button, this.status, this.repeat, this.problem];
    this.root = h("div", { class: "activity" }, parts);
    this.become("idle");
  }

  become(state) {
    this.state = state;
    this.root.dataset.state = state;
    this.button.hidden = state !== "working";
    if (this.repeat) this.repeat.hidden = state !== "stopped" && state !== "failed";
    if (state !== "failed") {
      this.problem.hidden = true;
      this.problem.textContent = "";
    }
  }

  say(text) {
    this.status.textContent = text;
  }

  // Run work(signal, say) in place of any earlier work. Returns whether it came to its end.
  // end: the state after it, which is "stopped" for the inspection of what was written before Stop
  async run(text, work, end = "idle") {
    this.controller?.abort();
    const own = (this.controller = new AbortController());
    const { signal } = own;
    // Stop takes effect at once, also while the work waits for something that cannot be aborted
    const aborted = new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    });
    aborted.catch(() => {});
    const say = (now) => {
      if (this.controller === own) this.say(now);
    };
    this.become("working");
    this.say(text);
    try {
      await Promise.race([work(signal, say), aborted]);
      if (this.controller !== own) return false;
      this.controller = null;
      this.become(end);
      return true;
    } catch (trouble) {
      if (this.controller !== own) return false; // later work has replaced it
      this.controller = null;
      if (trouble?.name === "AbortError") this.become("stopped");
      else this.fail(trouble);
      return false;
    }
  }

  // What the user asks for by Stop; what was computed so far is then shown.
  stop() {
    if (this.state !== "working") return;
    const own = this.controller;
    this.controller = null;
    own.abort();
    this.become("stopped");
    this.say("Stopped.");
    this.after?.();
  }

  // Drop the work, because something else is shown in its place.
  cancel() {
    this.controller?.abort();
    this.controller = null;
    this.become("idle");
  }

  fail(trouble) {
    if (trouble?.name === "AbortError") return;
    this.become("failed");
    this.say("");
    this.problem.textContent = sentence(trouble);
    this.problem.hidden = false;
  }
}

/** The message of an error as a sentence. */
export function sentence(trouble) {
  const text = trouble?.message ?? String(trouble);
  const end = /[.!?]$/.test(text) ? "" : ".";
  return text.charAt(0).toUpperCase() + text.slice(1) + end;
}
