// Save a view as an image (PNG, SVG) or its data as JSON.

import { tint } from "./colours.js";
import { s } from "./dom.js";

// One SVG with several SVGs below each other.
export function sheet(parts) {
  const pad = 20, drawn = parts.filter(Boolean);
  if (!drawn.length) return null;
  let y = pad, wide = 0;
  const root = s("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" });
  const body = s("g");
  for (const part of drawn) {
    const w = Number(part.getAttribute("width")), t = Number(part.getAttribute("height"));
    part.setAttribute("x", pad);
    part.setAttribute("y", y);
    part.setAttribute("overflow", "visible"); // a title may be wider than its figure
    body.append(part);
    y += t + pad;
    wide = Math.max(wide, w, ...[...part.querySelectorAll("text")].slice(0, 1).map((title) => (Number(title.getAttribute("x")) || 0) + 7.5 * title.textContent.length));
  }
  root.setAttribute("width", wide + 2 * pad);
  root.setAttribute("height", y);
  root.setAttribute("viewBox", `0 0 ${wide + 2 * pad} ${y}`);
  root.append(s("rect", { width: "100%", height: "100%", fill: tint("paper") }), body);
  return root;
}

const text = (root) => new XMLSerializer().serializeToString(root);

export async function png(root) {
  const image = new Image(), address = URL.createObjectURL(new Blob([text(root)], { type: "image/svg+xml" }));
  try {
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * Number(root.getAttribute("width"));
    canvas.height = 2 * Number(root.getAttribute("height"));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

export async function save(kind, name, view) {
  if (kind === "json") return offer(new Blob([JSON.stringify(view.data(), null, 1)], { type: "application/json" }), `${name}.json`);
  const root = sheet(view.pictures());
  if (!root) throw new Error("There is nothing to save yet.");
  return offer(kind === "svg" ? new Blob([text(root)], { type: "image/svg+xml" }) : await png(root), `${name}.${kind}`);
}

function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  return blob.size;
}
