/**
 * The frame: the menu, the open view and its state in the address, the theme, saving, and whether
 * the server answers.
 */

import { get, Problem } from "./api.js";
import { sentence } from "./activity.js";
import { h } from "./dom.js";
import { save } from "./figure.js";
import { Path } from "./path.js";
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
let fading = 0;
const place = document.getElementById("view");
const problem = document.getElementById("problem");
const notice = document.getElementById("notice");
const views = {}; // by name, as they are first opened
let current = null;
let listed = null;
let written = null;
// the state of the open view as an address, and the address as it was last seen in the bar
let seen = "";

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
    return (await get("models/trained"))
      .filter((one) => one.kinds.includes(kind))
      .map((one) => ({ ...one, trained: true }));
  },

  // All that is known of one model; raises if a view cannot use it.
  async opened(kind, id) {
    const own = await get("models/one", { model: id });
    if (own.error) throw new Problem(`the model ${own.name} cannot be opened: ${own.error}`);
    if (!own.kinds.includes(kind)) {
      throw new Problem(
        `the model ${own.name} does not ${kind}${
          own.why
            ? `: ${own.why}`
            : own.kinds.length
            ? `: open it in ${VIEWS[own.kinds[0]]?.[0] ?? own.kinds[0]}`
            : ""
        }`,
      );
    }
    return own;
  },

  // The models that a view can use, those of runs last, if they can be listed now; `id` names one
  // that may be of a run, or not be usable.
  async known(kind, id) {
    const [all, trained] = await Promise.all([frame.models(), frame.trained(kind).catch(() => [])]);
    const listed = all.filter((one) => one.kinds.includes(kind));
    if (!id || listed.some((one) => one.id === id)) return [...listed, ...trained];
    const own = await frame.opened(kind, id);
    return own.trained
      ? [...listed, ...trained.filter((one) => one.id !== id), own]
      : [own, ...listed, ...trained];
  },

  remember(view, push) {
    // it goes on in the background, or another view is about to open
    if (current !== view || location.hash !== seen) return;
    const kept = Object.entries({
      ...view.state(),
      step: path.at === null ? null : path.at + 1,
    }).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const next = `#${view.name}${
      kept.length
        ? `?${new URLSearchParams(
          kept.map((
            [key, value],
          ) => [key, typeof value === "object" ? JSON.stringify(value) : value]),
        )}`
        : ""
    }`;
    if (next === written) return;
    written = next;
    // A text that is too long is left out, so that the address does not show an earlier one.
    history[push ? "pushState" : "replaceState"](
      null,
      "",
      next.length < LONGEST ? next : `#${view.name}`,
    );
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
  go(address) {
    location.hash = address;
  },
};
const path = new Path();

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
    link.getAttribute("href") === `#${name}`
      ? link.setAttribute("aria-current", "page")
      : link.removeAttribute("aria-current");
  }
  path.opened(name, step);
  view.enter(state);
}

function theme(to) {
  if (to) document.documentElement.dataset.theme = to;
  else delete document.documentElement.dataset.theme;
  try {
    if (to) localStorage.setItem("theme", to);
    else localStorage.removeItem("theme");
  } catch {
    /* no storage: the choice is not kept */
  }
  dispatchEvent(new Event("theme"));
}

async function saved(kind, figure = null) {
  try {
    const { name, size } = await save(
      kind,
      current,
      { version: frame.version, address: written?.length < LONGEST ? location.href : null },
      figure,
    );
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
  const text = [
    here
      ? "The link is copied. It opens on this machine only: start with --host 0.0.0.0 to share it."
      : "The link is copied.",
    current.lasts(),
  ]
    .filter(Boolean)
    .join(" ");
  try {
    await navigator.clipboard.writeText(address);
    frame.say(text);
  } catch {
    frame.say(address);
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

document
  .getElementById("nav")
  .append(...Object.entries(VIEWS).map(([name, [title]]) => h("a", { href: `#${name}` }, title)));
document.getElementById("path").append(path.root);
document.getElementById("tools").append(
  h(
    "span",
    { class: "saves", role: "group", "aria-label": "Save this view" },
    ["png", "svg", "json"].map((kind) =>
      h(
        "button",
        {
          type: "button",
          title: `Save this view as ${kind.toUpperCase()}`,
          "data-save": kind,
          onclick: () => saved(kind),
        },
        kind.toUpperCase(),
      )
    ),
  ),
  h("button", { type: "button", title: "Copy a link to this view", onclick: link }, "link"),
  h(
    "button",
    {
      type: "button",
      id: "theme",
      title: "Light or dark",
      "aria-label": "Light or dark",
      onclick: () => {
        const now = document.documentElement.dataset.theme ??
          (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
        theme(now === "dark" ? "light" : "dark");
      },
    },
    "◐",
  ),
);
try {
  if (localStorage.getItem("theme")) {
    document.documentElement.dataset.theme = localStorage.getItem("theme");
  }
} catch {
  /* no storage: the system's theme */
}
matchMedia("(prefers-color-scheme: dark)").addEventListener(
  "change",
  () => dispatchEvent(new Event("theme")),
);
addEventListener("save-figure", ({ detail: { figure, kind } }) => saved(kind, figure));
addEventListener("problem", (event) => frame.problem(event.detail));
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError" || event.reason instanceof Problem) {
    event.preventDefault();
  }
  frame.problem(event.reason);
});
addEventListener("offline-now", wait);
addEventListener("online-again", () => {
  frame.fine();
  for (const view of Object.values(views)) view.back?.();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  place.focus();
}); // #view is not the name of a view
addEventListener("hashchange", open);
frame.models().catch(() => {}); // views show it
open();
