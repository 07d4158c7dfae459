// The frame: the menu, the open view and its state in the address, the theme, errors and status.

import { get } from "./api.js";
import { h } from "./dom.js";
import { save } from "./export.js";
import { Build } from "./views/build.js";
import { Train } from "./views/train.js";
import { Translate } from "./views/translate.js";
import { Write } from "./views/write.js";

const VIEWS = { translate: ["Translate", Translate], write: ["Write", Write], build: ["Build", Build], train: ["Train", Train] };
const place = document.getElementById("view"), problem = document.getElementById("problem"), status = document.getElementById("status");
let current = null, written = "";

const frame = {
  models: null, // a promise of the list of models
  // The models that a view can use; the model of a run is not listed, and requested by its id.
  async known(kind, id) {
    const all = (await frame.models).filter((one) => one.kinds.includes(kind));
    if (id && !all.some((one) => one.id === id)) {
      try { const own = await get("models/one", { model: id }); if (own.kinds.includes(kind)) all.unshift(own); else frame.problem(`the model ${id} does not ${kind}: another was chosen`); } catch (trouble) { frame.problem(trouble); }
    }
    return all;
  },
  // Put the state of the open view into the address, so that it can be shared or bookmarked.
  remember(name, state) {
    if (current?.name !== name) return; // the view has been closed meanwhile
    const kept = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "");
    written = `#${name}${kept.length ? `?${new URLSearchParams(kept.map(([key, value]) => [key, typeof value === "object" ? JSON.stringify(value) : value]))}` : ""}`;
    if (written.length < 8000) history.replaceState(null, "", written);
  },
  problem(trouble) {
    if (trouble?.name === "AbortError") return;
    const sentence = trouble?.message ?? String(trouble);
    problem.textContent = sentence.charAt(0).toUpperCase() + sentence.slice(1) + (/[.!?]$/.test(sentence) ? "" : ".");
    problem.hidden = false;
  },
  fine() { problem.hidden = true; problem.textContent = ""; },
  status(text) { status.textContent = text; },
};

function parse() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  return [VIEWS[name] ? name : "translate", Object.fromEntries(new URLSearchParams(query))];
}

function open() {
  if (current && location.hash === written) return;
  const [name, state] = parse();
  written = location.hash;
  current?.view.leave?.();
  frame.fine();
  frame.status("");
  const [title, View] = VIEWS[name];
  document.title = `${title} · clearhead`;
  const view = new View(frame, state);
  current = { name, view };
  place.replaceChildren(view.root);
  view.enter?.();
  for (const link of document.querySelectorAll("#nav a")) link.getAttribute("href") === `#${name}` ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
}

function theme(to) {
  if (to) document.documentElement.dataset.theme = to; else delete document.documentElement.dataset.theme;
  try { to ? localStorage.setItem("theme", to) : localStorage.removeItem("theme"); } catch { /* no storage: the choice is not kept */ }
  dispatchEvent(new Event("theme"));
}

document.getElementById("nav").append(...Object.entries(VIEWS).map(([name, [title]]) => h("a", { href: `#${name}` }, title)));
const saver = (kind) => h("button", { type: "button", title: `Save this view as ${kind.toUpperCase()}`, "data-save": kind, onclick: async () => {
  try { frame.fine(); const size = await save(kind, `clearhead-${current.name}`, current.view); frame.status(`Saved clearhead-${current.name}.${kind} (${Math.ceil(size / 1000)} kB).`); } catch (trouble) { frame.problem(trouble); }
} }, kind.toUpperCase());
document.getElementById("tools").append(
  h("span", { class: "saves", role: "group", "aria-label": "Save this view" }, ["png", "svg", "json"].map(saver)),
  h("button", { type: "button", title: "Copy a link to this view", onclick: async () => { if (location.hash !== written) return frame.status("This text is too long for an address: save it as JSON instead."); try { await navigator.clipboard.writeText(location.href); frame.status("The link is copied."); } catch { frame.status(location.href); } } }, "link"),
  h("button", { type: "button", id: "theme", title: "Light or dark", "aria-label": "Light or dark", onclick: () => {
    const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    theme(now === "dark" ? "light" : "dark");
  } }, "◐"));
try { if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme"); } catch { /* no storage: the system's theme */ }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("theme")));
addEventListener("problem", (event) => frame.problem(event.detail));
addEventListener("unhandledrejection", (event) => { if (event.reason?.name === "AbortError") event.preventDefault(); else frame.problem(event.reason); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); place.focus(); }); // #view is not the name of a view
addEventListener("hashchange", open);
frame.models = get("models");
frame.models.catch((trouble) => frame.problem(trouble));
open();
