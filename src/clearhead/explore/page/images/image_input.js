/** A place to drop, paste or choose an image. */

import { picture, upload } from "../api.js";
import { button } from "../controls.js";
import { h } from "../dom.js";

const LARGEST = 1024; // pixels of the longer side that are sent to the server
// bytes of a file that is sent as it is, if its image is not larger than that
const SMALL = 1 << 20;
// formats that the server reads as well
const PLAIN = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

/**
 * An image is shrunk here and decoded by the server in memory; found: called with { id, width,
 * height, image }.
 */
export class ImageInput {
  constructor({ found, fail, text = "Drop, paste or choose an image" }) {
    Object.assign(this, { found, fail });
    const chosen = () => {
      this.take(this.file.files[0]);
      this.file.value = ""; // so that the same file can be chosen again
    };
    this.file = h("input", {
      type: "file",
      accept: "image/*",
      class: "unseen",
      tabindex: -1,
      "aria-hidden": "true",
      onchange: chosen,
    });
    const open = button(text, () => this.file.click());
    this.root = h("div", { class: "drop" }, open, this.file);
    addEventListener("dragover", (event) => this.draggedOver(event));
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) this.root.classList.remove("over");
    });
    addEventListener("drop", (event) => this.dropped(event));
    addEventListener("paste", (event) => this.pasted(event));
  }

  // Whether it is on screen: a file may be dropped anywhere on the page.
  get shown() {
    return this.root.isConnected && this.root.offsetParent;
  }

  draggedOver(event) {
    if (!this.shown || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    this.root.classList.add("over");
  }

  dropped(event) {
    this.root.classList.remove("over");
    if (!this.shown || !event.dataTransfer.files.length) return;
    event.preventDefault();
    this.take(event.dataTransfer.files[0]);
  }

  pasted(event) {
    const files = [...event.clipboardData.files];
    const image = files.find((file) => file.type.startsWith("image/"));
    if (!image || !this.shown) return;
    event.preventDefault();
    this.take(image);
  }

  async take(file) {
    if (!file) return this.fail(new Error("There is no image in what was given."));
    const asked = (this.asked = {});
    try {
      const found = await sent(file);
      // unless another was given meanwhile
      if (this.asked === asked) this.found({ ...found, name: file.name });
    } catch (trouble) {
      if (this.asked === asked) this.fail(trouble.offline ? trouble : unusable(file, trouble));
    }
  }
}

function unusable(file, trouble) {
  const what = file.name ? `The file ${file.name}` : "This image";
  return new Error(`${what} cannot be used: ${trouble.message}`);
}

// Send a file to the server: { id, width, height, image }.
async function sent(file) {
  let image = null;
  try {
    image = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    /* the server reads some formats that the browser does not */
  }
  const kept = await upload("images", image && !asItIs(file, image) ? await shrunk(image) : file);
  return { ...kept, image: image ?? (await picture("images/one", { id: kept.id })) };
}

function asItIs(file, image) {
  const small = Math.max(image.width, image.height) <= LARGEST && file.size <= SMALL;
  return small && PLAIN.includes(file.type);
}

// An image as a file, no larger than the server needs.
function shrunk(image) {
  const scale = Math.min(1, LARGEST / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * image.width));
  canvas.height = Math.max(1, Math.round(scale * image.height));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/webp", 0.95));
}
