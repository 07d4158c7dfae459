/**
 * Save a view: its figures on one sheet (SVG, PNG) with title and provenance, or everything it
 * shows as JSON.
 */

import { colour, css, tint } from "./colours.js";
import { s } from "./dom.js";

const PAD = 24;
const WIDE = 1180; // pixels around and between figures, and the width that figures are laid out in
const LARGEST = 16000; // pixels per side of a PNG
const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";

const line = (x, y, size, fill, text, more = {}) =>
  s("text", { x, y, "font-size": size, fill: tint(fill), ...more }, text);
const wide = (text, size) => 0.56 * size * text.length; // pixels, roughly

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

/** One SVG with a title, all figures in rows, and a line that says where the numbers come from. */
export function sheet(figures, { title, source }, origin) {
  const parts = figures.filter(Boolean);
  if (!parts.length) return null;
  const body = s("g");
  let x = PAD;
  let y = PAD + 22;
  let row = 0;
  let right = 0;
  const heading = wrapped(title, 100);
  heading.forEach((text, i) => {
    if (i) y += 24;
    body.append(line(PAD, y, 18, "ink", text, { "font-weight": 600 }));
  });
  for (const text of wrapped(source, 150)) {
    y += 19;
    body.append(line(PAD, y, 13, "soft", text));
  }
  y += PAD;
  for (const part of parts) {
    const w = Number(part.getAttribute("width"));
    const t = Number(part.getAttribute("height"));
    if (x > PAD && (x + w > WIDE || part.hasAttribute("data-part"))) {
      x = PAD;
      y += row + PAD;
      row = 0;
    }
    part.setAttribute("x", x);
    part.setAttribute("y", y);
    part.setAttribute("overflow", "visible");
    body.append(part);
    if (part.getAttribute("data-part") !== "") right = Math.max(right, x + w);
    x += part.hasAttribute("data-part") ? WIDE : w + PAD;
    row = Math.max(row, t);
  }
  y += row + PAD;
  const end = wrapped(origin, 150);
  for (const text of end) {
    body.append(line(PAD, y + 4, 11, "soft", text));
    y += 16;
  }
  right = Math.max(
    right,
    ...heading.map((text) => PAD + wide(text, 18)),
    ...wrapped(source, 150).map((text) => PAD + wide(text, 13)),
    ...end.map((text) => PAD + wide(text, 11)),
  );
  const size = [Math.ceil(right + PAD), Math.ceil(y + PAD - 8)];
  return s(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      "font-family": FONT,
      width: size[0],
      height: size[1],
      viewBox: `0 0 ${size[0]} ${size[1]}`,
    },
    s("rect", { width: "100%", height: "100%", fill: tint("paper") }),
    body,
  );
}

function wrapped(text, most) {
  const found = [""];
  for (
    const word of String(text ?? "")
      .split(/\s+/)
      .flatMap((one) => one.match(new RegExp(`.{1,${most}}`, "gu")) ?? [])
  ) {
    if (found.at(-1) && found.at(-1).length + word.length + 1 > most) found.push(word);
    else found.push(`${found.pop()} ${word}`.trim());
  }
  return found.filter(Boolean);
}

/** A colour scale as SVG: a bar from low to high with its numbers and what they are. */
export function scaleBar({ x, y, low, high, label, signed = false, root = false, shade = colour }) {
  const wide = 120;
  const steps = 40;
  return s(
    "g",
    { transform: `translate(${x},${y})`, "font-size": 11, fill: tint("soft") },
    Array.from({ length: steps }, (_, i) =>
      s("rect", {
        x: (i * wide) / steps,
        width: wide / steps + 0.5,
        height: 8,
        fill: css(shade(signed ? (2 * i) / (steps - 1) - 1 : i / (steps - 1))),
      })),
    s("text", { y: 20 }, low),
    s("text", { x: wide, y: 20, "text-anchor": "end" }, high),
    s("text", { x: wide + 8, y: 8 }, label + (root ? " (colours: square root)" : "")),
  );
}

const text = (root) => new XMLSerializer().serializeToString(root);

async function png(root) {
  const image = new Image();
  const address = URL.createObjectURL(new Blob([text(root)], { type: "image/svg+xml" }));
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
  const name = `clearhead-${
    `${file}${figure ? "-figure" : ""}`.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 80)
  }.${kind}`;
  const day = new Date().toISOString().slice(0, 10);
  if (kind === "json") {
    return offer(
      new Blob(
        [
          JSON.stringify(
            {
              clearhead: version,
              saved: new Date().toISOString(),
              address,
              view: view.name,
              ...(await view.data()),
            },
            plain,
            1,
          ),
        ],
        { type: "application/json" },
      ),
      name,
    );
  }
  const short = address && address.length > 260 ? `${address.slice(0, 257)}…` : address;
  const root = sheet(
    figure ? [figure] : view.figures(),
    { title, source },
    [`clearhead ${version}`, day, short].filter(Boolean).join(" · "),
  );
  if (!root) throw new Error("There is nothing to save yet.");
  return offer(
    kind === "svg" ? new Blob([text(root)], { type: "image/svg+xml" }) : await png(root),
    name,
  );
}

const plain = (_, value) =>
  value instanceof Float32Array
    ? Array.from(value, (x) => (Number.isFinite(x) ? Number(x.toPrecision(7)) : null))
    : value;

function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  return { name, size: blob.size };
}
