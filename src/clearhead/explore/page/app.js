/**
 * The frame: the menu, the open view and its state in the address, the theme, saving, and whether
 * the server answers.
 */

import { sentence } from "./activity.js";
import { get, Problem } from "./api.js";
import { dark } from "./colours.js";
import { button } from "./controls.js";
import { h } from "./dom.js";
import { save } from "./figures/sheet.js";
import { inAddress } from "./panes/paned_view.js";
import { Path } from "./path/path.js";
import { Build } from "./views/build.js";
import { Caption } from "./views/caption.js";
import { Classify } from "./views/classify.js";
import { Compare } from "./views/compare.js";
import { Read } from "./views/read.js";
import { Start } from "./views/start.js";
import { Train } from "./views/train.js";
import { Translate } from "./views/translate.js";
import { Write } from "./views/write.js";

const VIEWS = {
  start: ["Start", Start],
  translate: ["Translate", Translate],
  write: ["Write", Write],
  read: ["Read", Read],
  classify: ["Classify", Classify],
  caption: ["Caption", Caption],
  compare: ["Compare", Compare],
  build: ["Build", Build],
  train: ["Train", Train],
};
const LOCAL = ["127.0.0.1", "localhost", "[::1]"];
const LONGEST = 8000; // characters of an address
const READING = 12000; // milliseconds that a notice stays
let fading = 0; // the timer that ends a notice
const place = document.getElementById("view");
const problem = document.getElementById("problem");
const notice = document.getElementById("notice");
const views = {}; // by name, as they are first opened
let current = null; // the open view
let listed = null; // the list of models, or its promise
let written = null; // the state of the open view as an address
let seen = ""; // the address as it was last seen in the bar

const frame = {
  version: document.querySelector('meta[name="version"]').content,

  // The list of models; requested again if the server did not answer.
  models() {
    listed ??= get("models").catch((trouble) => {
      listed = null;
      throw trouble;
    });
    return listed;
  },

  // The models of finished runs, which may have changed since: in outline, until one is opened.
  async trained(kind) {
    const all = await get("models/trained");
    const usable = all.filter((model) => model.kinds.includes(kind));
    return usable.map((model) => ({ ...model, trained: true }));
  },

  // All that is known of one model; raises if a view cannot use it.
  async opened(kind, id) {
    const own = await get("models/one", { model: id });
    if (own.error) throw new Problem(`the model ${own.name} cannot be opened: ${own.error}`);
    if (own.kinds.includes(kind)) return own;
    const [other] = own.kinds;
    const advice = other ? `open it in ${VIEWS[other]?.[0] ?? other}` : "";
    const why = own.why || advice;
    throw new Problem(`the model ${own.name} does not ${kind}${why ? `: ${why}` : ""}`);
  },

  // The models that a view can use, those of runs last, if they can be listed now; `id` names one
  // that may be of a run, or not be usable.
  async known(kind, id) {
    const [all, trained] = await Promise.all([frame.models(), frame.trained(kind).catch(() => [])]);
    const usable = all.filter((model) => model.kinds.includes(kind));
    if (!id || usable.some((model) => model.id === id)) return [...usable, ...trained];
    const own = await frame.opened(kind, id);
    if (!own.trained) return [own, ...usable, ...trained];
    return [...usable, ...trained.filter((model) => model.id !== id), own];
  },

  // Write the state of a view into the address; push: as a new entry of the history.
  remember(view, push) {
    // it goes on in the background, or another view is about to open
    if (current !== view || location.hash !== seen) return;
    const next = addressOf(view);
    if (next === written) return;
    written = next;
    // A text that is too long is left out, so that the address does not show an earlier one.
    const short = next.length < LONGEST ? next : `#${view.name}`;
    if (push) history.pushState(null, "", short);
    else history.replaceState(null, "", short);
    seen = location.hash;
  },

  // A problem that belongs to no view's work.
  problem(trouble) {
    if (trouble?.name === "AbortError") return;
    problem.textContent = sentence(trouble);
    problem.hidden = false;
  },
  fine() {
    problem.hidden = true;
    problem.textContent = "";
  },
  say(text) {
    notice.textContent = text;
    clearTimeout(fading);
    if (text) fading = setTimeout(() => frame.say(""), READING);
  },
};
const path = new Path();

// The state of a view as an address, with the step of the guided path that it belongs to.
function addressOf(view) {
  const state = view.state();
  if (path.at !== null) state.step = path.at + 1;
  const given = (value) => value !== null && value !== undefined && value !== "";
  const kept = Object.entries(state).filter(([, value]) => given(value));
  if (!kept.length) return `#${view.name}`;
  const texts = kept.map(([key, value]) => [key, inAddress(value)]);
  return `#${view.name}?${new URLSearchParams(texts)}`;
}

// The name of the view that the address opens, its state, and the step of the guided path.
function parse() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  const { step, ...state } = Object.fromEntries(new URLSearchParams(query));
  return [VIEWS[name] ? name : "start", state, step];
}

function open() {
  if (current && location.hash === written) return;
  const [name, state, step] = parse();
  const [title, View] = VIEWS[name];
  const view = (views[name] ??= new View(frame));
  written = seen = location.hash;
  if (current !== view) {
    current?.leave();
    place.replaceChildren(view.root);
    frame.say("");
    scrollTo(0, 0);
  }
  current = view;
  document.title = `${title} · clearhead`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("href") === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  path.opened(name, step);
  view.enter(state);
}

// Make the page "light" or "dark".
function theme(to) {
  document.documentElement.dataset.theme = to;
  try {
    localStorage.setItem("theme", to);
  } catch {
    /* no storage: the choice is not kept */
  }
  dispatchEvent(new Event("theme"));
}

async function saved(kind, figure = null) {
  try {
    const address = written?.length < LONGEST ? location.href : null;
    const origin = { version: frame.version, address };
    const { name, size } = await save(kind, current, origin, figure);
    frame.say(`Saved ${name} (${Math.ceil(size / 1000)} kB).`);
  } catch (trouble) {
    frame.say(sentence(trouble));
  }
}

async function link() {
  if (location.hash !== written) {
    return frame.say("This text is too long for an address: save it as JSON instead.");
  }
  const { query } = await get("share");
  const address = `${location.origin}/${query}${location.hash}`;
  const here = LOCAL.includes(location.hostname);
  const said = ["The link is copied."];
  if (here) said.push("It opens on this machine only: start with --host 0.0.0.0 to share it.");
  if (current.lasts()) said.push(current.lasts());
  try {
    await navigator.clipboard.writeText(address);
    frame.say(said.join(" "));
  } catch {
    frame.say(address); // to be copied by hand
  }
}

// While the server does not answer: ask every two seconds, and clear the message when it is back.
function wait() {
  frame.problem(
    "The server does not answer: is it still running? This page goes on when it is back.",
  );
  setTimeout(async function again() {
    try {
      await get("models");
    } catch {
      setTimeout(again, 2000);
    }
  }, 2000);
}

// The menu and the tools at the top.
function fillHeader() {
  const views = Object.entries(VIEWS);
  const links = views.map(([name, [title]]) => h("a", { href: `#${name}` }, title));
  document.getElementById("nav").append(...links);
  document.getElementById("path").append(path.root);
  const saves = ["png", "svg", "json"].map((kind) => {
    const name = kind.toUpperCase();
    const more = { title: `Save this view as ${name}`, "data-save": kind };
    return button(name, () => saved(kind), more);
  });
  const title = "Light or dark";
  const turn = () => theme(dark() ? "light" : "dark");
  document
    .getElementById("tools")
    .append(
      h("span", { class: "saves", role: "group", "aria-label": "Save this view" }, saves),
      button("link", link, { title: "Copy a link to this view" }),
      button("◐", turn, { id: "theme", title, "aria-label": title }),
    );
}

fillHeader();
try {
  if (localStorage.getItem("theme")) {
    document.documentElement.dataset.theme = localStorage.getItem("theme");
  }
} catch {
  /* no storage: the system's theme */
}
const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => dispatchEvent(new Event("theme")));
addEventListener("save-figure", ({ detail: { figure, kind } }) => saved(kind, figure));
addEventListener("problem", (event) => frame.problem(event.detail));
addEventListener("unhandledrejection", (event) => {
  const expected = event.reason?.name === "AbortError" || event.reason instanceof Problem;
  if (expected) event.preventDefault(); // it is no error of the page, and not for the console
  frame.problem(event.reason);
});
addEventListener("offline-now", wait);
addEventListener("online-again", () => {
  frame.fine();
  for (const view of Object.values(views)) view.back?.();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // #view is not the name of a view
  place.focus();
});
addEventListener("hashchange", open);
frame.models().catch(() => {}); // views show it
open();
