/**
 * A video played through the service: frames are taken here, the labels painted over them, and what
 * the governor chose for each is drawn along the time.
 *
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./view.js").View} View
 * @typedef {{name: string, width: number, height: number, duration: number, time: () => number,
 *   play: () => void, pause: () => void, close: () => void,
 *   paint: (pen: OffscreenCanvasRenderingContext2D, width: number, height: number) => void}} Source
 */

import { byId, inputOf, make, number, svg } from "./dom.js";
import * as service from "./service.js";

/** The longer side of a frame as it is shown, and as it is sent. */
const LARGE = 960;
const SMALL = 480;
/** Seconds that a drive into an image takes, and how near it comes. */
const DRIVE = 12;
const NEAR = 1.8;

/**
 * A video file.
 * @param {File} file
 * @returns {Promise<Source>}
 */
export async function videoOf(file) {
  const video = make("video", { muted: true, playsInline: true, src: URL.createObjectURL(file) });
  await new Promise((resolve, reject) => {
    video.onloadeddata = resolve;
    video.onerror = () => reject(new Error(`"${file.name}" is not a video that this browser can play. Choose an MP4 or WebM file.`));
  });
  return {
    name: file.name,
    width: video.videoWidth,
    height: video.videoHeight,
    duration: video.duration,
    time: () => video.currentTime,
    play: () => void video.play(),
    pause: () => video.pause(),
    close: () => URL.revokeObjectURL(video.src),
    paint: (pen, width, height) => pen.drawImage(video, 0, 0, width, height),
  };
}

/**
 * A drive into an image, for those who have no video at hand.
 * @param {ImageBitmap} image
 * @param {string} name
 * @returns {Source}
 */
export function driveInto(image, name) {
  let before = 0;
  /** @type {number | null} */
  let since = null;
  const time = () => Math.min(DRIVE, before + (since === null ? 0 : (performance.now() - since) / 1000));
  return {
    name,
    width: image.width,
    height: image.height,
    duration: DRIVE,
    time,
    play: () => {
      if (time() >= DRIVE) before = 0;
      since = performance.now();
    },
    pause: () => {
      before = time();
      since = null;
    },
    close: () => image.close(),
    paint: (pen, width, height) => {
      const near = NEAR ** (time() / DRIVE);
      const [w, h] = [image.width / near, image.height / near];
      pen.drawImage(image, (image.width - w) / 2, (image.height - h) / 2, w, h, 0, 0, width, height);
    },
  };
}

/** What happened since the start; the frames shown have a time and the stop that was chosen. */
const newTally = () => ({
  frames: /** @type {{time: number, stop: number}[]} */ ([]),
  sent: 0,
  newest: 0,
  skipped: 0,
  refused: 0,
  note: "",
  began: performance.now(),
});

/**
 * A canvas of a source's shape, not longer than a side.
 * @param {Source} source
 * @param {number} side
 * @param {Source["paint"]} paint
 */
function canvasOf({ width, height }, side, paint) {
  const shrink = Math.min(1, side / Math.max(width, height));
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(width * shrink)), Math.max(1, Math.round(height * shrink)));
  paint(/** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d")), canvas.width, canvas.height);
  return canvas;
}

export class Film {
  /**
   * @param {Model} model
   * @param {View} view
   * @param {() => string} wish - the mode to ask for
   * @param {(mode: string) => void} ran - called with the mode of each frame that is shown
   * @param {(problem: string) => void} object
   */
  constructor(model, view, wish, ran, object) {
    this.model = model;
    this.view = view;
    this.wish = wish;
    this.ran = ran;
    this.object = object;
    /** @type {Source | null} */
    this.source = null;
    this.playing = false;
    /** Whether a frame is under way, and whether another one should be. */
    this.busy = this.due = false;
    this.tally = newTally();
    byId("play").addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    inputOf("rate").addEventListener("input", () => this.showRate());
    new ResizeObserver(() => this.draw()).observe(byId("governor"));
  }

  /** Play another video. @param {Source} source */
  open(source) {
    this.close();
    this.source = source;
    byId("film").hidden = false;
    this.setPace();
    this.play();
  }

  close() {
    this.pause();
    this.source?.close();
    this.source = null;
    byId("film").hidden = true;
  }

  play() {
    const { source } = this;
    if (!source) return;
    if (source.time() >= source.duration || source.time() === 0) this.tally = newTally();
    this.control = new AbortController();
    this.playing = true;
    byId("play").textContent = "Pause";
    this.showRate();
    source.play();
    this.tick();
  }

  pause() {
    this.playing = false;
    clearTimeout(this.timer);
    this.control?.abort();
    this.source?.pause();
    byId("play").textContent = this.source && this.source.time() >= this.source.duration ? "Play again" : "Play";
  }

  rate() {
    return Number(inputOf("rate").value);
  }

  /** Begin at a rate at which the governor has to choose; more than the fastest point keeps is not offered. */
  setPace() {
    const times = this.model.points.map((point) => point.latency_ms ?? 100);
    // A frame may be larger than what was timed, and is also decoded and painted.
    const most = Math.max(2, Math.min(30, Math.floor(500 / times[times.length - 1])));
    inputOf("rate").max = String(most);
    inputOf("rate").value = String(Math.max(1, Math.round(most / 2)));
  }

  showRate() {
    byId("rate-now").textContent = String(this.rate());
  }

  /** Send a frame, so many times a second. */
  tick() {
    const source = /** @type {Source} */ (this.source);
    this.timer = setTimeout(() => this.tick(), 1000 / this.rate());
    if (source.time() >= source.duration) return this.pause();
    if (this.due) this.tally.skipped++;
    this.due = true;
    if (!this.busy) this.send(source);
  }

  /** @param {Source} source */
  async send(source) {
    const { signal } = /** @type {AbortController} */ (this.control);
    const mine = ++this.tally.sent;
    const time = source.time();
    const frame = canvasOf(source, LARGE, (pen, width, height) => source.paint(pen, width, height));
    const small = canvasOf(source, SMALL, (pen, width, height) => pen.drawImage(frame, 0, 0, width, height));
    this.busy = true;
    this.due = false;
    try {
      const bytes = await small.convertToBlob({ type: "image/jpeg", quality: 0.9 });
      // Half of a frame's time is the governor's: so frames come as fast as they are shown.
      const { mask, mode } = await service.frame(bytes, this.wish(), 2000 / this.rate(), signal);
      const labels = await createImageBitmap(mask);
      if (signal.aborted || mine < this.tally.newest) return;
      this.tally.newest = mine;
      this.view.film(frame, labels, { width: frame.width, height: frame.height, name: source.name, mode });
      this.tally.frames.push({ time, stop: this.model.points.findIndex((point) => point.mode === mode) });
      this.ran(mode);
      this.draw();
    } catch (error) {
      if (!signal.aborted) this.missed(error);
    } finally {
      this.busy = false;
      if (this.due && this.playing && source === this.source) this.send(source);
    }
  }

  /** A frame got no answer. @param {unknown} error */
  missed(error) {
    const status = error instanceof service.Refusal ? error.status : 0;
    if (status === 429) this.tally.refused++;
    else if (status === 400 && this.rate() > 1 && /deadline/i.test(String(error))) {
      // Even the fastest point needs longer than a frame has.
      this.tally.note = ` ${this.rate()} frames a second are too many for this machine.`;
      inputOf("rate").value = String(this.rate() - 1);
      this.showRate();
    } else {
      this.pause();
      this.object(error instanceof Error ? error.message : String(error));
    }
  }

  /** The stops that the governor chose, along the time, and the numbers. */
  draw() {
    const { source } = this;
    if (!source) return;
    const { points } = this.model;
    const { frames, skipped, refused, note, began } = this.tally;
    const [row, left] = [15, 84];
    const width = Math.max(240, byId("governor").clientWidth);
    const span = width - left - 4;
    const mark = Math.max(2, span / Math.max(60, source.duration * this.rate()) - 1);
    const last = frames.at(-1);
    byId("governor").replaceChildren(svg("svg", { width, height: row * points.length, role: "img", "aria-label": `Operating points of ${frames.length} frames` },
      ...points.flatMap((point, i) => [
        svg("line", { class: "grid", x1: left, x2: width, y1: row * (i + 0.5), y2: row * (i + 0.5) }),
        svg("text", { class: i === last?.stop ? "name current" : "", x: 0, y: row * (i + 0.5) + 4 }, point.name ?? point.mode),
      ]),
      ...frames.filter(({ stop }) => stop >= 0).map(({ time, stop }) =>
        svg("rect", { class: "chosen", x: left + (span * time) / source.duration, y: row * stop + 3, width: mark, height: row - 6 }))));
    const seconds = (performance.now() - began) / 1000;
    byId("film-facts").textContent = `The governor's choice for each frame. ${number(frames.length / Math.max(1, seconds))} frames/s shown, ` +
      `${skipped} skipped, ${refused} refused.${note}`;
  }
}
