/**
 * The trade-off of a model: mIoU against speed-up, as a drawing and as a table to choose from.
 *
 * @typedef {import("./service.js").Point} Point
 * @typedef {import("./service.js").Model} Model
 * @typedef {Point & {miou: number, speed_up: number}} Measured
 * @typedef {{left: number, right: number, top: number, bottom: number}} Box
 */

import { byId, make, svg, times } from "./dom.js";
import { explain } from "./mode.js";

/** The mIoU of a point, and on which data; nothing if it is not known. @param {Point} point */
export function accuracyOf(point) {
  if (point.miou === null) return "";
  return `mIoU ${(100 * point.miou).toFixed(1)}${point.data ? ` on ${point.data}` : ""}`;
}

/**
 * The Pareto front, from slow to fast: what no other point beats in both.
 * @param {Measured[]} points
 */
export function front(points) {
  /** @type {Measured[]} */
  const best = [];
  for (const point of [...points].sort((a, b) => b.speed_up - a.speed_up || b.miou - a.miou)) {
    if (best.length === 0 || point.miou > best[0].miou) best.unshift(point);
  }
  return best;
}

/**
 * Round numbers inside a range, about `count` of them.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((nice) => nice * power >= rough) ?? 10);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) found.push(n * step + 0);
  return { at: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

export class Curve {
  /**
   * @param {Model} model
   * @param {(point: Point) => void} choose
   */
  constructor(model, choose) {
    this.host = byId("curve");
    this.choose = choose;
    /** The current mode, and its speed-up on the image where it is not a point. @type {string | null} */
    this.current = null;
    /** @type {number | null} */
    this.speed = null;
    /** @type {Map<string, Measured>} */
    const known = new Map();
    for (const point of [...model.curve, ...model.points]) {
      if (point.miou === null || point.speed_up === null) continue;
      const name = point.name ?? known.get(point.mode)?.name ?? null;
      known.set(point.mode, /** @type {Measured} */ ({ ...point, name }));
    }
    this.points = [...known.values()].sort((a, b) => a.speed_up - b.speed_up || b.miou - a.miou);
    this.front = front(this.points);
    if (this.points.length < 2) {
      byId("curve-about").textContent = "Not measured yet: paumer tune measures a model and names its points.";
      return;
    }
    const { data, images, where } = this.points[0];
    byId("curve-about").textContent =
      `All modes measured for this model${data ? `, mIoU on ${data}${images ? ` (${images} images)` : ""}` : ""}` +
      `${where ? `; speed-up on ${where}` : ""}. The line is the Pareto front. Choose a point to set the dial.`;
    new ResizeObserver(() => this.draw()).observe(this.host);
  }

  /**
   * Mark the current mode.
   * @param {string | null} mode
   * @param {number | null} speed - its speed-up on the image, where known
   */
  mark(mode, speed) {
    this.current = mode;
    this.speed = speed;
    if (this.points.length < 2) return;
    this.draw();
    this.list();
  }

  draw() {
    const width = Math.max(240, this.host.clientWidth);
    const height = Math.round(Math.min(300, Math.max(210, 0.5 * width)));
    const plot = { left: 40, right: width - 8, top: 24, bottom: height - 38 };
    const unmeasured = this.speed !== null && !this.points.some((point) => point.mode === this.current) ? this.speed : null;
    const speeds = this.points.map((point) => point.speed_up);
    const x = scale(unmeasured === null ? speeds : [...speeds, unmeasured], 0.06, plot.left, plot.right);
    const y = scale(this.points.map((point) => 100 * point.miou), 0.2, plot.bottom, plot.top);
    const line = this.front.map((p) => `${x.of(p.speed_up)},${y.of(100 * p.miou)}`).join(" ");
    const names = new Labels(plot, this.points.map((p) => [x.of(p.speed_up), y.of(100 * p.miou)]));
    // The current point's name has the first choice of a place.
    const order = [...this.points].sort((a, b) => Number(b.mode === this.current) - Number(a.mode === this.current));
    const texts = order.map((p) => p.name && names.put(p.name, x.of(p.speed_up), y.of(100 * p.miou), p.mode === this.current));
    const here = [];
    if (unmeasured !== null) {
      const at = x.of(unmeasured);
      here.push(svg("line", { class: "unmeasured", x1: at, x2: at, y1: plot.top, y2: plot.bottom }));
      const heights = [plot.bottom - 12, plot.top + 20, (plot.top + plot.bottom) / 2];
      texts.push(heights.reduce((found, height) => found ?? names.put("this mode", at, height, true), /** @type {SVGElement | null} */ (null)));
    }
    const drawing = svg("svg", { width, height, role: "img", "aria-label": `Trade-off of ${this.points.length} modes; the table after it says the same` });
    drawing.append(
      ...axes(x, y, plot),
      svg("polyline", { class: "front", points: line }),
      ...here,
      ...this.points.map((point) => this.dot(point, x.of(point.speed_up), y.of(100 * point.miou))),
      ...texts.filter((text) => text instanceof SVGElement),
    );
    this.host.replaceChildren(drawing);
  }

  /**
   * @param {Measured} point
   * @param {number} cx
   * @param {number} cy
   */
  dot(point, cx, cy) {
    const current = point.mode === this.current;
    const dot = svg(
      "g",
      { class: `dot${this.front.includes(point) ? " best" : ""}${current ? " current" : ""}`, "data-mode": point.mode },
      svg("title", {}, `${point.name ?? point.mode}: ${accuracyOf(point)}, ${times(point.speed_up)}`),
      svg("circle", { class: "reach", cx, cy, r: 14 }),
      svg("circle", { class: "ring", cx, cy, r: 9 }),
      svg("circle", { class: "core", cx, cy, r: 5 }),
    );
    dot.addEventListener("click", () => this.choose(point));
    return dot;
  }

  /** Every point, and what it would change. */
  list() {
    const now = this.points.find((point) => point.mode === this.current);
    const focused = document.activeElement?.getAttribute("data-mode");
    const rows = this.points.flatMap((point) => {
      const here = point === now;
      const button = make("button", { type: "button", className: "link", textContent: point.name ?? point.mode });
      button.dataset.mode = point.mode;
      button.addEventListener("click", () => this.choose(point));
      const beaten = this.front.includes(point) ? "" : " Another point beats it.";
      const about = make("td", { colSpan: 4, className: "quiet fine", textContent: `${explain(point.mode)}.${beaten}` });
      const row = make("tr", { className: here ? "here" : "" },
        make("th", { scope: "row" }, button),
        make("td", { textContent: (100 * point.miou).toFixed(1) }),
        make("td", { textContent: times(point.speed_up) }),
        make("td", { textContent: here ? "set" : now ? change(now, point) : "–" }));
      if (here) button.setAttribute("aria-current", "true");
      return [row, make("tr", { className: "what" }, about)];
    });
    const head = ["mode", "mIoU", "speed-up", "would change"].map((textContent) => make("th", { scope: "col", textContent }));
    byId("changes").replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
    if (focused) /** @type {HTMLElement[]} */ ([...byId("changes").querySelectorAll("button")]).find((one) => one.dataset.mode === focused)?.focus();
  }
}

/** @param {Measured} from @param {Measured} to */
function change(from, to) {
  const points = 100 * (to.miou - from.miou);
  const sign = points < 0 ? "\u2212" : "+";
  return `${sign}${Math.abs(points).toFixed(1)} mIoU, ${times(to.speed_up / from.speed_up)}`;
}

/** The names in a plot: inside it, and over neither points nor each other. */
class Labels {
  /**
   * @param {Box} plot
   * @param {number[][]} dots
   */
  constructor(plot, dots) {
    this.plot = plot;
    this.taken = dots.map(([x, y]) => ({ left: x - 6, right: x + 6, top: y - 6, bottom: y + 6 }));
    this.pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  }

  /**
   * A name near a place; null where there is no room.
   * @param {string} text
   * @param {number} x
   * @param {number} y
   * @param {boolean} current
   */
  put(text, x, y, current) {
    this.pen.font = `650 12px ${getComputedStyle(document.body).fontFamily}`;
    const wide = this.pen.measureText(text).width;
    const [centre, right, back] = [x - wide / 2, x + 8, x - 8 - wide];
    for (const [left, middle] of [[centre, y - 18], [right, y - 14], [centre, y + 18], [back, y + 14], [right, y + 14], [back, y - 14], [x + 12, y], [x - 12 - wide, y]]) {
      const box = { left, right: left + wide, top: middle - 8, bottom: middle + 8 };
      const { plot } = this;
      const inside = box.left >= plot.left + 2 && box.right <= plot.right && box.top >= plot.top - 14 && box.bottom <= plot.bottom - 2;
      if (!inside || this.taken.some((other) => overlap(box, other))) continue;
      this.taken.push(box);
      return svg("text", { class: `name${current ? " current" : ""}`, x: left, y: middle + 4 }, text);
    }
    return null;
  }
}

/** @param {Box} a @param {Box} b */
const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

/**
 * @param {ReturnType<typeof scale>} x
 * @param {ReturnType<typeof scale>} y
 * @param {Box} plot
 */
function axes(x, y, plot) {
  const speeds = ticks(x.low, x.high, Math.floor((plot.right - plot.left) / 80));
  const scores = ticks(y.low, y.high, 4);
  return [
    ...speeds.at.flatMap((value) => [
      svg("line", { class: "grid", x1: x.of(value), x2: x.of(value), y1: plot.top, y2: plot.bottom }),
      svg("text", { class: "tick", x: x.of(value), y: plot.bottom + 16, "text-anchor": "middle" }, `${value.toFixed(speeds.digits)}\u00a0×`),
    ]),
    ...scores.at.flatMap((value) => [
      svg("line", { class: "grid", x1: plot.left, x2: plot.right, y1: y.of(value), y2: y.of(value) }),
      svg("text", { class: "tick", x: plot.left - 8, y: y.of(value) + 4, "text-anchor": "end" }, value.toFixed(scores.digits)),
    ]),
    svg("text", { class: "axis", x: plot.right, y: plot.bottom + 34, "text-anchor": "end" }, "speed-up"),
    svg("text", { class: "axis", x: 0, y: 10 }, "mIoU"),
  ];
}

/**
 * A straight scale that leaves some room at both ends.
 * @param {number[]} values
 * @param {number} room
 * @param {number} from
 * @param {number} to
 */
function scale(values, room, from, to) {
  const least = Math.min(...values);
  const most = Math.max(...values);
  const spare = room * (most - least || 1);
  const low = least - spare;
  const high = most + spare;
  return { low, high, of: /** @param {number} v */ (v) => from + ((v - low) / (high - low)) * (to - from) };
}
