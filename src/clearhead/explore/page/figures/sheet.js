/**
 * Save a view: its figures on one sheet (SVG, PNG) with title and provenance, or everything it
 * shows as JSON.
 */

import { colour, css, tint } from "../colours.js";
import { s } from "../dom.js";

const PAD = 24; // pixels around and between figures
const WIDE = 1180; // the width that figures are laid out in
const LARGEST = 16000; // pixels per side of a PNG
const LONGEST_ADDRESS = 260; // characters of an address that a sheet names
const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";

const line = (x, y, size, fill, text, more = {}) =>
  s("text", { x, y, "font-size": size, fill: tint(fill), ...more }, text);
const wide = (text, size) => 0.56 * size * text.length; // pixels, roughly: text is not measured
const widest = (lines, size) => Math.max(0, ...lines.map((text) => wide(text, size)));

/** The title of one figure. */
export const heading = (text, x = 0) =>
  s("text", { x, y: 14, "font-size": 14, "font-weight": 600, fill: tint("ink") }, text);

/** A heading between the figures of a sheet. */
export const part = (text) =>
  s(
    "svg",
    { width: WIDE - PAD, height: 20, "data-part": "" },
    line(0, 14, 15, "ink", text, { "font-weight": 600 }),
  );

/** Lines of text between the figures of a sheet. */
export function notes(text) {
  const lines = wrapped(text, 160);
  return s(
    "svg",
    {
      width: Math.max(...lines.map((words) => wide(words, 13))),
      height: 18 * lines.length,
      "data-part": "text",
    },
    lines.map((words, i) => line(0, 12 + 18 * i, 13, "soft", words)),
  );
}

// One SVG with a title, all figures in rows, and a line that says where the numbers come from.
function sheet(figures, { title, source }, origin) {
  const parts = figures.filter(Boolean);
  if (!parts.length) return null;
  const body = s("g");
  const titles = wrapped(title, 100);
  const sources = wrapped(source, 150);
  const origins = wrapped(origin, 150);
  let y = PAD + 22;
  titles.forEach((text, i) => {
    if (i) y += 24;
    body.append(line(PAD, y, 18, "ink", text, { "font-weight": 600 }));
  });
  for (const text of sources) {
    y += 19;
    body.append(line(PAD, y, 13, "soft", text));
  }
  const rows = inRows(parts, y + PAD);
  body.append(...parts);
  y = rows.low + PAD;
  for (const text of origins) {
    body.append(line(PAD, y + 4, 11, "soft", text));
    y += 16;
  }
  const written = Math.max(widest(titles, 18), widest(sources, 13), widest(origins, 11));
  const width = Math.ceil(Math.max(rows.right, PAD + written) + PAD);
  const height = Math.ceil(y + PAD - 8);
  return s(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      "font-family": FONT,
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
    },
    s("rect", { width: "100%", height: "100%", fill: tint("paper") }),
    body,
  );
}

// Place figures in rows from y on; a heading or a text (data-part) has a row of its own. Returns
// where the last row and the widest one end.
function inRows(parts, y) {
  let x = PAD;
  let tallest = 0; // of the row
  let right = 0;
  for (const part of parts) {
    const width = Number(part.getAttribute("width"));
    const alone = part.hasAttribute("data-part");
    if (x > PAD && (x + width > WIDE || alone)) {
      x = PAD;
      y += tallest + PAD;
      tallest = 0;
    }
    part.setAttribute("x", x);
    part.setAttribute("y", y);
    part.setAttribute("overflow", "visible");
    // a heading is as wide as the sheet may be, and does not widen it
    if (part.getAttribute("data-part") !== "") right = Math.max(right, x + width);
    x += alone ? WIDE : width + PAD;
    tallest = Math.max(tallest, Number(part.getAttribute("height")));
  }
  return { low: y + tallest, right };
}

// The lines of a text, of at most so many characters.
function wrapped(text, most) {
  const words = String(text ?? "").split(/\s+/);
  const pieces = words.flatMap((word) => word.match(new RegExp(`.{1,${most}}`, "gu")) ?? []);
  const lines = [""];
  for (const piece of pieces) {
    const last = lines.at(-1);
    if (last && last.length + piece.length + 1 > most) lines.push(piece);
    else lines[lines.length - 1] = `${last} ${piece}`.trim();
  }
  return lines.filter(Boolean);
}

/** A colour scale as SVG: a bar from low to high with its numbers and what they are. */
export function scaleBar({ x, y, low, high, label, signed = false, root = false, shade = colour }) {
  const width = 120;
  const steps = 40;
  const cells = Array.from({ length: steps }, (_, i) => {
    const t = i / (steps - 1);
    return s("rect", {
      x: (i * width) / steps,
      width: width / steps + 0.5, // no gap between neighbours
      height: 8,
      fill: css(shade(signed ? 2 * t - 1 : t)),
    });
  });
  return s(
    "g",
    { transform: `translate(${x},${y})`, "font-size": 11, fill: tint("soft") },
    cells,
    s("text", { y: 20 }, low),
    s("text", { x: width, y: 20, "text-anchor": "end" }, high),
    s("text", { x: width + 8, y: 8 }, label + (root ? " (colours: square root)" : "")),
  );
}

const text = (root) => new XMLSerializer().serializeToString(root);
const svgFile = (root) => new Blob([text(root)], { type: "image/svg+xml" });

async function png(root) {
  const image = new Image();
  const address = URL.createObjectURL(svgFile(root));
  try {
    image.src = address;
    await image.decode();
    const size = ["width", "height"].map((name) => Number(root.getAttribute(name)));
    const scale = Math.min(2, LARGEST / Math.max(...size));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = size.map((x) => Math.round(scale * x));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Save the open view, or one figure of it; returns the file's name and size. */
export async function save(kind, view, { version, address }, figure = null) {
  const { title, source, file } = view.caption();
  const name = fileName(figure ? `${file}-figure` : file, kind);
  if (kind === "json") return offer(await json(view, version, address), name);
  const origin = [`clearhead ${version}`, new Date().toISOString().slice(0, 10)];
  if (address) origin.push(shortened(address));
  const figures = figure ? [figure] : view.figures();
  const root = sheet(figures, { title, source }, origin.join(" · "));
  if (!root) throw new Error("There is nothing to save yet.");
  return offer(kind === "svg" ? svgFile(root) : await png(root), name);
}

function fileName(text, kind) {
  const safe = text.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  return `clearhead-${safe.slice(0, 80)}.${kind}`;
}

const shortened = (address) =>
  address.length > LONGEST_ADDRESS ? `${address.slice(0, LONGEST_ADDRESS - 3)}…` : address;

async function json(view, version, address) {
  const saved = new Date().toISOString();
  const data = { clearhead: version, saved, address, view: view.name, ...(await view.data()) };
  return new Blob([JSON.stringify(data, plain, 1)], { type: "application/json" });
}

// Arrays of float32 as lists, with the digits that a float32 has.
function plain(_, value) {
  if (!(value instanceof Float32Array)) return value;
  const rounded = (x) => (Number.isFinite(x) ? Number(x.toPrecision(7)) : null);
  return Array.from(value, rounded);
}

function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  return { name, size: blob.size };
}
