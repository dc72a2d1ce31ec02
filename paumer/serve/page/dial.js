/**
 * The dial: a slider over the operating points, a field for any other mode, and auto.
 *
 * @typedef {import("./service.js").Answer} Answer
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./service.js").Point} Point
 * @typedef {{mode: string, auto: boolean}} Setting What the dial stands at.
 */

import { factsOf } from "./charts.js";

/** Milliseconds that the slider must rest before the service is asked. */
const REST = 150;

/** The only point of a model that has none. */
const PLAIN = { name: null, mode: "none", miou: null, speed_up: null, latency_ms: null };

export class Dial {
  /**
   * @param {Model} model
   * @param {(delay: number) => void} turned - called when the setting changed
   * @param {(problem: string) => void} object - called with what is wrong with a mode
   */
  constructor(model, turned, object) {
    this.blocks = model.blocks;
    /** @type {Point[]} */
    this.points = model.points.length > 0 ? model.points : [PLAIN];
    this.turned = turned;
    this.object = object;
    /** @type {Answer | null} */
    this.answer = null;
    this.slider = inputOf("dial");
    this.field = inputOf("mode");
    this.early = inputOf("early");
    this.auto = inputOf("auto");
    this.slider.max = String(this.points.length - 1);
    this.slider.disabled = this.points.length < 2;
    place("ticks").replaceChildren(...this.points.map(() => document.createElement("i")));
    /** @type {Setting} */
    this.setting = settingOf(this.points[Math.floor(this.points.length / 2)]);
    this.listen();
  }

  listen() {
    this.slider.addEventListener("input", () => this.set(settingOf(this.points[Number(this.slider.value)]), REST));
    this.auto.addEventListener("change", () => this.set({ ...this.setting, auto: this.auto.checked }));
    this.early.addEventListener("change", () =>
      this.set({ mode: withExit(this.modeNow() ?? "none", this.early.checked), auto: false }));
    place("custom").addEventListener("submit", (event) => {
      event.preventDefault();
      this.read();
    });
  }

  /**
   * @param {Setting} wanted
   * @param {number} [delay]
   */
  set(wanted, delay = 0) {
    this.setting = wanted;
    this.field.setAttribute("aria-invalid", "false");
    this.field.value = wanted.auto ? "auto" : wanted.mode;
    this.show();
    this.turned(delay);
  }

  /** Stand at a point. @param {Point} point */
  turnTo(point) {
    this.set(settingOf(point));
  }

  /** Take over the service's spelling of what was asked for. @param {Answer} answer */
  settle(answer) {
    if (!this.setting.auto) this.setting = { mode: answer.mode, auto: false };
  }

  /** The mode set, or the one that the service chose; null before it did. */
  modeNow() {
    return this.setting.auto ? this.answer?.mode ?? null : this.setting.mode;
  }

  /** Show where it stands; `answer` is the last one, null for a new picture. @param {Answer | null} [answer] */
  show(answer = this.answer) {
    this.answer = answer;
    const mode = this.modeNow();
    const here = this.points.findIndex((point) => point.mode === mode);
    const point = this.points[here];
    if (point) this.slider.value = String(here);
    this.slider.classList.toggle("off", !point);
    const name = point?.name ?? mode ?? "not chosen yet";
    const facts = point ? factsOf(point) : mode === null ? "" : `${mode}, not measured`;
    place("point").textContent = this.setting.auto ? `auto: ${name}` : name;
    place("point-facts").textContent = this.points.length > 1 ? facts : `${facts}. This model has no operating points yet: paumer tune names some.`;
    this.slider.setAttribute("aria-valuetext", [name, facts].filter(Boolean).join(": "));
    this.auto.checked = this.setting.auto;
    this.early.checked = hasExit(mode ?? "");
    if (document.activeElement !== this.field) this.field.value = this.setting.auto ? "auto" : this.setting.mode;
  }

  /** Take the mode from the field, if it is one. */
  read() {
    const text = this.field.value.replaceAll(/\s*([,:<~])\s*/g, "$1").trim() || "none";
    const named = this.points.find((point) => point.name === text);
    const problem = named || text === "auto" ? "" : this.problemWith(text);
    if (problem) {
      this.field.setAttribute("aria-invalid", "true");
      this.object(problem);
    } else if (named) this.turnTo(named);
    else if (text === "auto") this.set({ ...this.setting, auto: true });
    else this.set({ mode: text, auto: false });
  }

  /** What is wrong with a mode's stages, in words; the service checks the rest. @param {string} text */
  problemWith(text) {
    const [stages] = text.split(/\s+/);
    if (stages === "none") return "";
    for (const part of stages.split(",")) {
      const found = /^(\d+)(?::<?|(?:-(\d+))?:~)(\d*\.?\d+)$/.exec(part);
      if (!found) return `“${part}” is not a stage: write a block, a colon and a ratio, such as 3:0.4,5:0.4, or 1-6:~0.1 to merge, or none.`;
      const amount = Number(found[3]);
      for (const block of [found[1], found[2] ?? found[1]].map(Number)) {
        if (block < 1 || block > this.blocks) return `There is no block ${block}: this model has blocks 1 to ${this.blocks}.`;
      }
      if (part.includes("~") && amount > 0.5) return `The ratio ${found[3]} is too large: at most half of the patches are merged, 0.5.`;
      if (!/[<~]/.test(part) && amount > 1) return `The ratio ${found[3]} is too large: it is below 1, such as 0.4, or 1 for all.`;
    }
    return "";
  }

  /** What to ask the service for: a mode, or auto. */
  wish() {
    return this.setting.auto ? "auto" : this.setting.mode;
  }
}

/**
 * @param {Point} point
 * @returns {Setting}
 */
const settingOf = ({ mode }) => ({ mode, auto: false });

/** Whether paused patches exit early in a mode. @param {string} mode */
const hasExit = (mode) => mode.split(/\s+/).includes("exit");

/**
 * A mode with early exit, or without; where nothing pauses there is none.
 * @param {string} mode
 * @param {boolean} exit
 */
function withExit(mode, exit) {
  const [stages, ...words] = mode.split(/\s+/).filter((word) => word !== "exit");
  return [stages, ...(exit && stages !== "none" ? ["exit"] : []), ...words].join(" ");
}

/** @param {string} id */
const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const inputOf = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));
