/**
 * The dial: a slider over the operating points, controls for size, merging and exit, a field for
 * any other mode, and auto.
 *
 * A mode that is no operating point stands between those that need more and fewer MACs.
 *
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./service.js").Point} Point
 * @typedef {{mode: string, auto: boolean}} Setting What the dial stands at.
 * @typedef {{mode: string, work?: number}} Ran What ran, and its MACs where they are known.
 */

import { accuracyOf } from "./charts.js";
import { byId, inputOf, make, selectOf } from "./dom.js";
import * as modes from "./mode.js";

/** Milliseconds that the slider must rest before the service is asked. */
const REST = 150;

/** How far beyond the first and the last stop a mode stands that is beyond them. */
const BEYOND = 0.4;

/** The only point of a model that has none. @type {Point} */
const PLAIN = { name: null, mode: "none", miou: null, speed_up: null, latency_ms: null, work: 1 };

/** The controls, what they stand at in a mode, and the mode with another choice. */
const KNOBS = {
  size: { of: modes.sizeOf, change: modes.withSize },
  merge: { of: modes.mergingOf, change: modes.withMerging },
  exit: { of: modes.exitOf, change: modes.withExit },
};

export class Dial {
  /**
   * @param {Model} model
   * @param {(delay: number) => void} turned - called when the setting changed
   * @param {(problem: string) => void} object - called with what is wrong with a mode
   */
  constructor(model, turned, object) {
    this.model = model;
    /** @type {Point[]} */
    this.points = model.points.length > 0 ? model.points : [PLAIN];
    this.turned = turned;
    this.object = object;
    /** @type {Ran | null} */
    this.answer = null;
    /** Where the knob stands: a whole number at a stop. */
    this.place = 0;
    this.held = false;
    this.slider = inputOf("dial");
    this.field = inputOf("mode");
    this.auto = inputOf("auto");
    this.slider.max = String(this.points.length - 0.5);
    this.slider.disabled = this.points.length < 2;
    byId("ticks").replaceChildren(...this.points.map((point) => {
      const tick = make("span", { textContent: point.name ?? "" });
      tick.addEventListener("click", () => this.turnTo(point));
      return tick;
    }));
    this.offer();
    /** @type {Setting} */
    this.setting = settingOf(this.points[Math.floor(this.points.length / 2)]);
    this.listen();
  }

  /** Fill the controls with what this model can do. */
  offer() {
    const { blocks, side } = this.model;
    const early = Math.max(1, Math.min(6, blocks - 1));
    const range = early > 1 ? `1-${early}` : "1";
    const smaller = side ? [0.8, 0.65, 0.5].map((part) => 16 * Math.round((part * side) / 16)) : [288, 224, 160];
    const last = Array.from({ length: Math.ceil(blocks / 2) }, (_, i) => blocks - 1 - i).filter((block) => block > 0);
    fill("size", [["", side ? `as trained, at most ${side}` : "as it is"], ...smaller.map((size) => [String(size), `shorter side ${size}`]), ["full", "full size"]]);
    fill("merge", [["", "none"], ...["0.05", "0.1", "0.15", "0.2"].map((ratio) => [`${range}:~${ratio}`, `${100 * Number(ratio)} % after blocks 1 to ${early}`])]);
    fill("exit", [["", "none"], ["exit", "paused patches, at once"], ...last.reverse().map((block) => [String(block), `all after block ${block}`])]);
  }

  listen() {
    this.slider.addEventListener("pointerdown", () => (this.held = true));
    for (const kind of ["pointerup", "pointercancel"]) this.slider.addEventListener(kind, () => (this.held = false));
    this.slider.addEventListener("input", () => this.moved(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => this.key(event));
    this.auto.addEventListener("change", () => this.set({ ...this.setting, auto: this.auto.checked }));
    for (const [id, { change }] of Object.entries(KNOBS)) {
      selectOf(id).addEventListener("change", () =>
        this.set({ mode: change(this.modeNow() ?? "none", selectOf(id).value), auto: false }));
    }
    byId("custom").addEventListener("submit", (event) => {
      event.preventDefault();
      this.read();
    });
  }

  /** The slider was pulled, or moved a little by what reads the screen. @param {number} value */
  moved(value) {
    const step = Math.abs(value - this.place) < 0.3 && !this.held;
    const stop = !step ? Math.round(value) : value > this.place ? Math.floor(this.place) + 1 : Math.ceil(this.place) - 1;
    this.stop(stop);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const up = Math.floor(this.place) + 1;
    const down = Math.ceil(this.place) - 1;
    const stops = { ArrowRight: up, ArrowUp: up, PageUp: up, ArrowLeft: down, ArrowDown: down, PageDown: down, Home: 0, End: this.points.length - 1 };
    if (!(event.key in stops)) return;
    event.preventDefault();
    this.stop(stops[/** @type {keyof typeof stops} */ (event.key)]);
  }

  /** Go to a stop, counted from the slowest. @param {number} number */
  stop(number) {
    const point = this.points[Math.max(0, Math.min(this.points.length - 1, number))];
    if (point.mode === this.modeNow() && !this.setting.auto) this.show();
    else this.set(settingOf(point), REST);
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

  /** Take over the service's spelling of what was asked for. @param {Ran} answer */
  settle(answer) {
    if (!this.setting.auto) this.setting = { mode: answer.mode, auto: false };
  }

  /** The mode set, or the one that the service chose; null before it did. */
  modeNow() {
    return this.setting.auto ? this.answer?.mode ?? null : this.setting.mode;
  }

  /** What to ask the service for: a mode, or auto. */
  wish() {
    return this.setting.auto ? "auto" : this.setting.mode;
  }

  /** Show where it stands; `answer` is the last one, null for a new picture. @param {Ran | null} [answer] */
  show(answer = this.answer) {
    this.answer = answer;
    const mode = this.modeNow();
    const here = this.points.findIndex((point) => point.mode === mode);
    const point = this.points[here];
    if (point) this.place = here;
    else if (answer?.work !== undefined && answer.mode === mode) this.place = between(this.points, answer.work);
    this.slider.value = String(this.place);
    this.slider.classList.toggle("off", !point);
    for (const [i, tick] of [...byId("ticks").children].entries()) tick.classList.toggle("here", i === here);
    const name = point ? point.name ?? "no pausing" : mode === null ? "not chosen yet" : "custom";
    const facts = mode === null ? "" : [modes.explain(mode), point ? accuracyOf(point) : "mIoU not measured"].filter(Boolean).join(". ") + ".";
    byId("point").textContent = this.setting.auto ? `auto: ${name}` : name;
    byId("point-facts").textContent = this.points.length > 1 ? facts : `${facts} This model has no operating points yet: paumer tune names some.`;
    this.slider.setAttribute("aria-valuetext", [name, facts].filter(Boolean).join(": "));
    this.auto.checked = this.setting.auto;
    this.showKnobs(mode ?? "none");
    if (document.activeElement !== this.field) this.field.value = this.setting.auto ? "auto" : this.setting.mode;
  }

  /** Set the controls to a mode; what they do not offer becomes a choice of its own. @param {string} mode */
  showKnobs(mode) {
    for (const [id, { of }] of Object.entries(KNOBS)) {
      const select = selectOf(id);
      const value = of(mode);
      select.querySelector("[data-typed]")?.remove();
      if (![...select.options].some((option) => option.value === value)) {
        const option = make("option", { value, textContent: value });
        option.dataset.typed = "";
        select.append(option);
      }
      select.value = value;
    }
  }

  /** Take the mode from the field, if it is one. */
  read() {
    const text = modes.tidy(this.field.value);
    const named = this.points.find((point) => point.name === text);
    const problem = named || text === "auto" ? "" : modes.problemWith(text, this.model.blocks);
    if (problem) {
      this.field.setAttribute("aria-invalid", "true");
      this.object(problem);
    } else if (named) this.turnTo(named);
    else if (text === "auto") this.set({ ...this.setting, auto: true });
    else this.set({ mode: text, auto: false });
  }
}

/**
 * Where a mode stands among the points, by its MACs.
 * @param {Point[]} points
 * @param {number} work
 */
function between(points, work) {
  if (work > points[0].work) return -BEYOND;
  const next = points.findIndex((point) => point.work < work);
  if (next < 1) return points.length - 1 + BEYOND;
  const [slow, fast] = [points[next - 1].work, points[next].work];
  // Never quite at a stop, which has a mode of its own.
  return next - 1 + Math.min(0.85, Math.max(0.15, (slow - work) / (slow - fast || 1)));
}

/**
 * @param {Point} point
 * @returns {Setting}
 */
const settingOf = ({ mode }) => ({ mode, auto: false });

/**
 * @param {string} id
 * @param {string[][]} choices - values and what they are called
 */
function fill(id, choices) {
  selectOf(id).replaceChildren(...choices.map(([value, textContent]) => make("option", { value, textContent })));
}
