/**
 * The dial: a slider over the operating points, a field for any other configuration, and auto.
 *
 * @typedef {import("./service.js").Answer} Answer
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./service.js").Point} Point
 * @typedef {{pause: string, early: boolean, criterion: string, auto: boolean}} Setting What the dial stands at.
 */

import { factsOf, keyOf } from "./charts.js";

/** Milliseconds that the slider must rest before the service is asked. */
const REST = 150;

/** The only point of a model that has none. */
const PLAIN = { name: null, pause: "none", early_exit: false, criterion: "entropy", miou: null, speed_up: null, latency_ms: null };

export class Dial {
  /**
   * @param {Model} model
   * @param {(delay: number) => void} turned - called when the setting changed
   * @param {(problem: string) => void} object - called with what is wrong with a configuration
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
    this.field = inputOf("pause");
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
      this.set({ pause: this.pauseNow() ?? "none", early: this.early.checked, criterion: this.criterionNow(), auto: false }));
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
    this.field.value = wanted.auto ? "auto" : wanted.pause;
    this.show();
    this.turned(delay);
  }

  /** Stand at a point. @param {Point} point */
  turnTo(point) {
    this.set(settingOf(point));
  }

  /** The configuration set, or the one that the service chose; null before it did. */
  pauseNow() {
    return this.setting.auto ? this.answer?.pause ?? null : this.setting.pause;
  }

  earlyNow() {
    return this.setting.auto ? this.answer?.early_exit ?? false : this.setting.early;
  }

  criterionNow() {
    return this.setting.auto ? this.answer?.criterion ?? "entropy" : this.setting.criterion;
  }

  /** What stands there or was chosen; null before it was. @returns {import("./charts.js").Way | null} */
  wayNow() {
    const pause = this.pauseNow();
    return pause === null ? null : { pause, early_exit: this.earlyNow(), criterion: this.criterionNow() };
  }

  /** Show where it stands; `answer` is the last one, null for a new picture. @param {Answer | null} [answer] */
  show(answer = this.answer) {
    this.answer = answer;
    const pause = this.pauseNow();
    const way = this.wayNow();
    const here = this.points.findIndex((p) => way !== null && keyOf(p) === keyOf(way));
    const point = this.points[here];
    if (point) this.slider.value = String(here);
    this.slider.classList.toggle("off", !point);
    const name = point?.name ?? pause ?? "not chosen yet";
    const facts = point ? factsOf(point) : pause === null ? "" : `pause ${pause}, not measured`;
    place("point").textContent = this.setting.auto ? `auto: ${name}` : name;
    place("point-facts").textContent = this.points.length > 1 ? facts : `${facts}. This model has no operating points yet: paumer tune names some.`;
    this.slider.setAttribute("aria-valuetext", [name, facts].filter(Boolean).join(": "));
    this.auto.checked = this.setting.auto;
    this.early.checked = this.earlyNow();
    if (document.activeElement !== this.field) this.field.value = this.setting.auto ? "auto" : this.setting.pause;
  }

  /** Take the configuration from the field, if it is one. */
  read() {
    const text = this.field.value.replaceAll(/\s/g, "") || "none";
    const named = this.points.find((point) => point.name === text);
    const problem = named || text === "auto" ? "" : this.problemWith(text);
    if (problem) {
      this.field.setAttribute("aria-invalid", "true");
      this.object(problem);
    } else if (named) this.turnTo(named);
    else if (text === "auto") this.set({ ...this.setting, auto: true });
    else this.set({ pause: text, early: this.earlyNow(), criterion: text === "none" ? "entropy" : this.criterionNow(), auto: false });
  }

  /** What is wrong with a configuration, in words; the service checks the rest. @param {string} text */
  problemWith(text) {
    if (text === "none") return "";
    for (const part of text.split(",")) {
      const found = /^(\d+):<?(\d*\.?\d+)$/.exec(part);
      if (!found) return `“${part}” is no pause: write a block, a colon and a share, such as 3:0.4,5:0.4, or none.`;
      const [block, amount] = [Number(found[1]), Number(found[2])];
      if (block < 1 || block > this.blocks) return `There is no block ${block}: this model has blocks 1 to ${this.blocks}.`;
      if (!part.includes("<") && amount >= 1) return `The share ${found[2]} is too large: it is below 1, such as 0.4.`;
    }
    return "";
  }

  /** What to ask the service for. @returns {import("./service.js").Wish} */
  wish() {
    const { pause, early, criterion, auto } = this.setting;
    return auto ? { pause: "auto", early: null, criterion: null } : { pause, early, criterion };
  }

  /** What tells this setting from others. */
  key() {
    const { pause, early, criterion, auto } = this.setting;
    return auto ? "auto" : keyOf({ pause, early_exit: early, criterion });
  }
}

/**
 * @param {Point} point
 * @returns {Setting}
 */
const settingOf = ({ pause, early_exit: early, criterion }) => ({ pause, early, criterion, auto: false });

/** @param {string} id */
const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const inputOf = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));
