/**
 * The last two minutes of the service, drawn as SVG.
 *
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./service.js").Status} Status
 * @typedef {import("./service.js").Second} Second
 */

import { make, number, svg } from "./dom.js";

/** Seconds that the strip shows. */
const SPAN = 120;

/** The last two minutes of the service: load, latency and operating point. */
export class Strip {
  /**
   * @param {HTMLElement} host
   * @param {Model} model
   */
  constructor(host, model) {
    this.model = model;
    this.rows = ["load", "p99 latency", "point, up is faster"].map((name) => {
      const value = make("span", { className: "value" });
      const picture = make("div", { className: "lane" });
      host.append(make("p", {}, make("span", { className: "quiet", textContent: name }), " ", value), picture);
      return { value, picture };
    });
    /** @type {Status | null} */
    this.status = null;
    new ResizeObserver(() => this.status && this.show(this.status)).observe(host);
  }

  /** @param {Status} status */
  show(status) {
    this.status = status;
    const end = status.history.at(-1)?.t ?? 0;
    const seconds = status.history.filter((second) => end - second.t < SPAN);
    const width = Math.max(120, this.rows[0].picture.clientWidth);
    const place = /** @param {Second} second */ (second) => width * (1 - (end - second.t + 1) / SPAN);
    this.load(status, seconds, width, place);
    this.latency(status, seconds, width, place);
    this.point(status, seconds, width, place);
  }

  /**
   * @param {number} row
   * @param {string} text
   * @param {number} width
   * @param {string} label
   * @param {SVGElement[]} marks
   */
  put(row, text, width, label, marks) {
    const { value, picture } = this.rows[row];
    value.textContent = text;
    picture.replaceChildren(svg("svg", { width, height: 48, role: "img", "aria-label": label }, ...marks));
  }

  /**
   * @param {Status} status
   * @param {Second[]} seconds
   * @param {number} width
   * @param {(second: Second) => number} place
   */
  load(status, seconds, width, place) {
    const most = Math.max(4, ...seconds.map((s) => s.requests));
    const step = width / SPAN;
    const bars = seconds.flatMap((second) => {
      const tall = (44 * (second.requests - second.refused)) / most;
      const more = (44 * second.refused) / most;
      const bar = { x: place(second).toFixed(1), width: Math.max(1, step - 0.8).toFixed(1) };
      return [
        svg("rect", { class: "load", ...bar, y: 47 - tall, height: tall }),
        svg("rect", { class: "refused", ...bar, y: 47 - tall - more, height: more }),
      ];
    });
    const rate = `${number(status.requests_per_second)} requests/s`;
    this.put(0, rate, width, `${rate}; at most ${number(most)} in the last two minutes`, [
      svg("line", { class: "floor", x1: 0, x2: width, y1: 47.5, y2: 47.5 }), ...bars,
    ]);
  }

  /**
   * @param {Status} status
   * @param {Second[]} seconds
   * @param {number} width
   * @param {(second: Second) => number} place
   */
  latency(status, seconds, width, place) {
    const target = this.model.latency_ms;
    const most = 1.15 * Math.max(target ?? 1, ...seconds.map((s) => s.p99 ?? 0));
    const y = /** @param {number} ms */ (ms) => (47 - (44 * ms) / most).toFixed(1);
    const marks = [
      svg("line", { class: "floor", x1: 0, x2: width, y1: 47.5, y2: 47.5 }),
      svg("path", { class: "line", d: trace(seconds, place, (s) => (s.p99 === null ? null : y(s.p99))) }),
    ];
    if (target !== null) {
      marks.push(svg("line", { class: "target", x1: 0, x2: width, y1: y(target), y2: y(target) }));
    }
    const now = status.latency_ms_p99;
    const value = now === null ? "no requests" : `${number(now)} ms`;
    const aim = target === null ? "" : `, target ${number(target)} ms`;
    this.put(1, value + aim, width, `p99 latency: ${value}, target ${target === null ? "none" : `${number(target)} ms`}`, marks);
    this.rows[1].value.classList.toggle("over", target !== null && now !== null && now > target);
  }

  /**
   * @param {Status} status
   * @param {Second[]} seconds
   * @param {number} width
   * @param {(second: Second) => number} place
   */
  point(status, seconds, width, place) {
    const { points } = this.model;
    const rungs = Math.max(1, points.length - 1);
    const height = /** @param {Second} second */ (second) => {
      const at = points.findIndex((p) => p.name === second.point || p.mode === second.point);
      return at < 0 ? null : (42 - (36 * at) / rungs).toFixed(1);
    };
    const lines = points.map((_, i) => {
      const y = 42 - (36 * i) / rungs;
      return svg("line", { class: "grid", x1: 0, x2: width, y1: y, y2: y });
    });
    const name = status.point ?? status.mode;
    this.put(2, name, width, `operating point: ${name}, ${number(status.changes)} changes so far`, [
      ...lines,
      svg("path", { class: "line step", d: trace(seconds, place, height, true) }),
    ]);
  }
}

/**
 * The path through the seconds that have a height, broken where one has none.
 * @param {Second[]} seconds
 * @param {(second: Second) => number} place
 * @param {(second: Second) => string | null} height
 * @param {boolean} [stepped]
 */
function trace(seconds, place, height, stepped = false) {
  let path = "";
  let down = false;
  for (const second of seconds) {
    const y = height(second);
    const x = place(second).toFixed(1);
    if (y !== null) path += down ? (stepped ? `H${x}V${y}` : `L${x},${y}`) : `M${x},${y}`;
    down = y !== null;
  }
  return path;
}
