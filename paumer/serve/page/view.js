/**
 * The picture with one layer over it, with pausing and without, behind a divider or side by side.
 *
 * @typedef {import("./service.js").Answer} Answer
 * @typedef {import("./service.js").ClassOf} ClassOf
 * @typedef {import("./picture.js").Picture} Picture
 * @typedef {"overlay" | "labels" | "paused" | "merged" | "entropy" | "changed" | "image"} Layer
 */

import { byId } from "./dom.js";
import { mergingOf, parse } from "./mode.js";

/** How much of the image its classes cover. */
const PAINT = 0.5;
const CHANGED = [213, 94, 0];

/**
 * What a layer shows, in a sentence.
 * @param {Layer} layer
 * @param {string} mode
 * @param {number} blocks
 */
export function aboutLayer(layer, mode, blocks) {
  const pauses = parse(mode).stages.some((stage) => !stage.merges);
  return {
    overlay: "The classes, painted over the image. Point at a place to name it.",
    labels: "The classes alone. Point at a place to name it.",
    paused: pauses
      ? `Tinted patches paused, because their class was clear by then; the colour tells after which block. The others ran through all ${blocks}.`
      : `Nothing paused: in this mode every patch runs through all ${blocks} blocks.`,
    merged: mergingOf(mode)
      ? "Tinted patches became part of the patch most similar to them and share its label; the colour tells after which block."
      : "Nothing merged: in this mode every patch stays itself. Set Merge to see similar patches become one.",
    entropy: "Dark where the network is sure of the class, bright where it is not: pausing spares work in the dark.",
    changed: "Orange where this mode gives another label than no pausing.",
    image: "The image as it was sent.",
  }[layer];
}

/** An answer whose pictures are decoded when first looked at. */
class Sheet {
  /** @param {Answer} answer */
  constructor(answer) {
    this.answer = answer;
    /** @type {Map<string, Promise<HTMLImageElement>>} */
    this.images = new Map();
    /** @type {Promise<Uint32Array> | null} */
    this.pixels = null;
  }

  /** @param {keyof Answer["images"]} layer */
  image(layer) {
    let image = this.images.get(layer);
    if (!image) {
      image = decode(this.answer.images[layer]);
      this.images.set(layer, image);
    }
    return image;
  }

  /** The labels' colours, one number a pixel. */
  labels() {
    this.pixels ??= this.image("labels").then((image) => {
      const { width, height } = this.answer;
      const pen = penOf(new OffscreenCanvas(width, height));
      pen.imageSmoothingEnabled = false;
      pen.drawImage(image, 0, 0, width, height);
      return new Uint32Array(pen.getImageData(0, 0, width, height).data.buffer);
    });
    return this.pixels;
  }
}

export class View {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.withPausing = /** @type {HTMLCanvasElement} */ (byId("with"));
    this.without = /** @type {HTMLCanvasElement} */ (byId("without"));
    this.divider = /** @type {HTMLInputElement} */ (byId("divider"));
    /** @type {Layer} */
    this.layer = "overlay";
    /** @type {ClassOf | null} */
    this.spotlight = null;
    /** @type {Picture | null} */
    this.picture = null;
    /** @type {Sheet | null} */
    this.sheet = null;
    /** @type {Sheet | null} */
    this.base = null;
    this.drawing = 0;
    this.divider.addEventListener("input", () => this.cut());
    this.cut();
  }

  /** Show another picture, without an answer yet. @param {Picture} picture */
  open(picture) {
    this.picture = picture;
    this.sheet = this.base = null;
    return this.draw();
  }

  /**
   * Show an answer, and beside it the one without pausing where it is known.
   * @param {Answer} answer
   * @param {Answer | null} base
   */
  show(answer, base) {
    if (this.sheet?.answer !== answer) this.sheet = new Sheet(answer);
    if (!base) this.base = null;
    else if (base === answer) this.base = this.sheet;
    else if (this.base?.answer !== base) this.base = new Sheet(base);
    return this.draw();
  }

  /** @param {Layer} layer */
  choose(layer) {
    this.layer = layer;
    return this.draw();
  }

  /** Dim all but one class; null for none. @param {ClassOf | null} one */
  shine(one) {
    this.spotlight = one;
    return this.draw();
  }

  /** @param {"swipe" | "beside"} kind */
  arrange(kind) {
    this.root.classList.toggle("swipe", kind === "swipe");
    this.root.classList.toggle("beside", kind === "beside");
    this.divider.disabled = kind === "beside";
  }

  cut() {
    const left = Number(this.divider.value);
    this.root.style.setProperty("--cut", `${left}%`);
    this.divider.setAttribute("aria-valuetext", `${left}% of the width without pausing`);
  }

  /** The share of pixels that keep the label they have without pausing; null if unknown. */
  async agreement() {
    const { sheet, base } = this;
    if (!sheet || !base) return null;
    if (sheet === base) return 1;
    const [here, there] = await Promise.all([sheet.labels(), base.labels()]);
    if (here.length !== there.length) return null;
    let same = 0;
    for (let i = 0; i < here.length; i++) if (here[i] === there[i]) same++;
    return same / here.length;
  }

  /**
   * The colours of the labels under the pointer, with and without pausing.
   * @param {PointerEvent} event
   */
  async under(event) {
    const { sheet, base } = this;
    if (!sheet) return null;
    const canvas = this.root.classList.contains("swipe") || event.target !== this.without
      ? this.withPausing
      : this.without;
    const box = canvas.getBoundingClientRect();
    const { width, height } = sheet.answer;
    const x = Math.floor(((event.clientX - box.left) / box.width) * width);
    const y = Math.floor(((event.clientY - box.top) / box.height) * height);
    if (x < 0 || y < 0 || x >= width || y >= height) return null;
    const at = y * width + x;
    return { here: (await sheet.labels())[at], there: base && (await base.labels())[at] };
  }

  /** Draw both sides; an outdated drawing gives way to the newer one. */
  async draw() {
    const number = ++this.drawing;
    const { picture, layer, sheet, base } = this;
    if (!picture) return;
    const [right, left] = await Promise.all([
      this.painting(layer, sheet, base),
      this.painting(layer, base, base),
    ]);
    if (number !== this.drawing) return;
    const { width, height } = sheet?.answer ?? picture;
    this.root.style.setProperty("--ratio", String(width / height));
    right(this.withPausing);
    left(this.without);
    const what = `${picture.name}, ${layer}`;
    this.withPausing.setAttribute("aria-label", `${what}, ${sheet ? `mode ${sheet.answer.mode}` : "not segmented yet"}`);
    this.without.setAttribute("aria-label", `${what}, ${base ? "no pausing" : "not segmented yet"}`);
    this.root.classList.toggle("lone", !base);
  }

  /**
   * What draws one side; everything it waits for is there when it is given.
   * @param {Layer} layer
   * @param {Sheet | null} sheet
   * @param {Sheet | null} base
   * @returns {Promise<(canvas: HTMLCanvasElement) => void>}
   */
  async painting(layer, sheet, base) {
    const picture = /** @type {Picture} */ (this.picture);
    const { spotlight } = this;
    const named = layer === "overlay" ? "labels" : layer;
    const above = sheet && named !== "image" && named !== "changed" ? await sheet.image(named) : null;
    const labels = sheet && (layer === "changed" || spotlight) ? await sheet.labels() : null;
    const others = sheet && base && layer === "changed" ? await base.labels() : null;
    return (canvas) => {
      const { width, height } = sheet?.answer ?? picture;
      Object.assign(canvas, { width, height });
      const pen = penOf(canvas);
      pen.drawImage(picture.bitmap, 0, 0, width, height);
      if (sheet && above) lay(pen, layer, above, sheet.answer);
      if (!labels) return;
      const all = pen.getImageData(0, 0, width, height);
      if (layer === "changed") mark(all.data, labels, others ?? labels);
      if (spotlight) dim(all.data, labels, packed(spotlight.colour));
      pen.putImageData(all, 0, 0);
    };
  }

  /**
   * Show a frame of a video under its labels.
   * @param {CanvasImageSource} frame
   * @param {CanvasImageSource} labels
   * @param {{width: number, height: number, name: string, mode: string}} of
   */
  film(frame, labels, { width, height, name, mode }) {
    this.drawing++;
    this.picture = this.sheet = this.base = null;
    Object.assign(this.withPausing, { width, height });
    this.root.style.setProperty("--ratio", String(width / height));
    this.root.classList.add("lone");
    const pen = penOf(this.withPausing);
    pen.drawImage(frame, 0, 0, width, height);
    pen.globalAlpha = PAINT;
    pen.drawImage(labels, 0, 0, width, height);
    this.withPausing.setAttribute("aria-label", `${name}, overlay, mode ${mode}`);
  }
}

/**
 * Lay the image of a layer over the picture; pauses and mergings have a pixel for each patch.
 * @param {CanvasRenderingContext2D} pen
 * @param {Layer} layer
 * @param {HTMLImageElement} image
 * @param {Answer} answer
 */
function lay(pen, layer, image, { width, height, patch }) {
  const byPatch = layer === "paused" || layer === "merged";
  const [down, across] = byPatch ? [image.height * patch[0], image.width * patch[1]] : [height, width];
  pen.imageSmoothingEnabled = layer === "entropy";
  pen.globalAlpha = layer === "overlay" ? PAINT : 1;
  pen.drawImage(image, 0, 0, across, down);
  pen.globalAlpha = 1;
}

/**
 * Grey and pale but for the pixels whose labels differ.
 * @param {Uint8ClampedArray} data
 * @param {Uint32Array} labels
 * @param {Uint32Array} others
 */
function mark(data, labels, others) {
  for (let i = 0; i < labels.length; i++) {
    const at = 4 * i;
    const grey = 0.3 * data[at] + 0.59 * data[at + 1] + 0.11 * data[at + 2];
    for (let c = 0; c < 3; c++) {
      data[at + c] = labels[i] === others[i] ? 150 + 0.4 * grey : CHANGED[c];
    }
  }
}

/**
 * Darken every pixel of another class.
 * @param {Uint8ClampedArray} data
 * @param {Uint32Array} labels
 * @param {number} colour
 */
function dim(data, labels, colour) {
  for (let i = 0; i < labels.length; i++) {
    if (labels[i] !== colour) for (let c = 0; c < 3; c++) data[4 * i + c] *= 0.22;
  }
}

/**
 * A colour as a pixel of {@link Sheet.labels} spells it.
 * @param {[number, number, number]} colour
 */
export const packed = (colour) => new Uint32Array(new Uint8Array([...colour, 255]).buffer)[0];

/** @param {string} address */
export async function decode(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

/**
 * @template {HTMLCanvasElement | OffscreenCanvas} C
 * @param {C} canvas
 */
function penOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (
    canvas.getContext("2d", { willReadFrequently: true })
  );
}
