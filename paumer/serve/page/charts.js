/**
 * The trade-off curve and the live strip, drawn as SVG.
 *
 * @typedef {import("./service.js").Point} Point
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./service.js").Status} Status
 * @typedef {import("./service.js").Second} Second
 * @typedef {Point & {miou: number, speed_up: number}} Measured
 */

/** Seconds that the strip shows. */
const SPAN = 120;

/**
 * An SVG element.
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {(Node | string)[]} children
 * @returns {SVGElement}
 */
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * A point in a few words.
 * @param {Point} point
 */
export function factsOf(point) {
  const facts = [point.mode === "none" ? "no pausing" : point.mode];
  if (point.miou !== null) {
    const data = point.data ? ` on ${point.data}` : "";
    facts.push(`mIoU ${(100 * point.miou).toFixed(1)}${data}`);
  }
  if (point.speed_up !== null) facts.push(`${point.speed_up.toFixed(2)} × as fast`);
  return facts.join(", ");
}

/**
 * The members that no other beats in both, from slow to fast.
 * @param {Measured[]} points
 */
export function skyline(points) {
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

/** The trade-off of a model: mIoU against speed-up. */
export class Curve {
  /**
   * @param {HTMLElement} host
   * @param {Model} model
   * @param {(point: Point) => void} choose
   * @param {(text: string) => void} tell - says in words which point is looked at
   */
  constructor(host, model, choose, tell) {
    this.host = host;
    this.choose = choose;
    this.tell = tell;
    this.current = "";
    /** @type {Map<string, Measured>} */
    const known = new Map();
    for (const point of [...model.curve, ...model.points]) {
      if (point.miou === null || point.speed_up === null) continue;
      const name = point.name ?? known.get(point.mode)?.name ?? null;
      known.set(point.mode, /** @type {Measured} */ ({ ...point, name }));
    }
    this.points = [...known.values()].sort((a, b) => a.speed_up - b.speed_up || b.miou - a.miou);
    this.named = new Set(model.points.map((point) => point.mode));
    if (this.points.length < 2) {
      host.textContent = "Not measured yet: paumer tune measures a model and names its points.";
      return;
    }
    new ResizeObserver(() => this.draw()).observe(host);
  }

  /** Mark the point of a mode as the current one. @param {string | null} mode */
  mark(mode) {
    this.current = mode ?? "";
    if (this.points.length >= 2) this.draw();
  }

  draw() {
    const width = Math.max(240, this.host.clientWidth);
    const height = Math.round(Math.min(300, Math.max(210, 0.55 * width)));
    const edge = { left: 40, right: 18, top: 30, bottom: 38 };
    const speeds = this.points.map((point) => point.speed_up);
    const scores = this.points.map((point) => 100 * point.miou);
    const x = scale(speeds, 0.06, edge.left, width - edge.right);
    const y = scale(scores, 0.12, height - edge.bottom, edge.top);
    const drawing = svg("svg", { width, height, role: "group", "aria-label": "Trade-off curve: arrow keys move between points, Enter chooses" });
    for (const [axis, at, digits] of marksOf(x, Math.floor(width / 90))) {
      drawing.append(svg("line", { class: "grid", x1: axis, x2: axis, y1: edge.top, y2: height - edge.bottom }));
      drawing.append(svg("text", { class: "tick", x: axis, y: height - edge.bottom + 16, "text-anchor": "middle" }, `${at.toFixed(digits)} ×`));
    }
    for (const [axis, at, digits] of marksOf(y, 4)) {
      drawing.append(svg("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: axis, y2: axis }));
      drawing.append(svg("text", { class: "tick", x: edge.left - 8, y: axis + 4, "text-anchor": "end" }, at.toFixed(digits)));
    }
    drawing.append(
      svg("text", { class: "axis", x: width - edge.right, y: height - 4, "text-anchor": "end" }, "speed-up"),
      svg("text", { class: "axis", x: 0, y: 12 }, "mIoU"),
    );
    const path = skyline(this.points).map((p) => `${x.of(p.speed_up)},${y.of(100 * p.miou)}`);
    drawing.append(svg("polyline", { class: "skyline", points: path.join(" ") }));
    this.here = this.points.findIndex((point) => point.mode === this.current);
    const focused = this.host.contains(document.activeElement) ? document.activeElement : null;
    const last = focused?.getAttribute("data-key");
    const dots = this.points.map((point, i) => this.dot(point, i, x.of(point.speed_up), y.of(100 * point.miou)));
    // Names stand over the points that have none; the order of the keys stays that of the speeds.
    drawing.append(...dots, ...dots.flatMap((dot) => [...dot.querySelectorAll(".name")]));
    this.host.replaceChildren(drawing);
    if (last) dots.find((dot) => dot.getAttribute("data-key") === last)?.focus();
  }

  /**
   * @param {Measured} point
   * @param {number} number
   * @param {number} x
   * @param {number} y
   */
  dot(point, number, x, y) {
    const key = point.mode;
    const current = key === this.current;
    const named = this.named.has(key);
    const label = [named ? point.name : null, factsOf(point)].filter(Boolean).join(": ");
    const dot = svg(
      "g",
      {
        class: `dot${named ? " named" : ""}${current ? " current" : ""}`,
        role: "button",
        "data-key": key,
        tabindex: number === Math.max(0, this.here ?? 0) ? 0 : -1,
        "aria-label": label,
        ...(current ? { "aria-current": "true" } : {}),
      },
      svg("circle", { class: "reach", cx: x, cy: y, r: 12 }),
      svg("circle", { class: "ring", cx: x, cy: y, r: 9 }),
      svg("circle", { class: "core", cx: x, cy: y, r: named ? 5 : 3 }),
    );
    if (named && point.name) {
      const above = [...this.named].indexOf(key) % 2 === 1;
      const start = x < 70; // The name of the slowest point does not cover the numbers of the axis.
      const at = { x: start ? x - 6 : x, y: y + (above ? -14 : 24), "text-anchor": start ? "start" : "middle" };
      dot.append(svg("text", { class: `name${current ? " current" : ""}`, ...at }, point.name));
    }
    dot.addEventListener("click", () => this.choose(point));
    dot.addEventListener("keydown", (event) => this.steer(event, point));
    for (const kind of ["pointerenter", "focus"]) dot.addEventListener(kind, () => this.tell(label));
    return dot;
  }

  /**
   * @param {KeyboardEvent} event
   * @param {Measured} point
   */
  steer(event, point) {
    const dots = /** @type {SVGElement[]} */ ([...this.host.querySelectorAll(".dot")]);
    const at = this.points.indexOf(point);
    const aims = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: dots.length - 1 };
    if (event.key in aims) dots[aims[/** @type {keyof typeof aims} */ (event.key)]]?.focus();
    else if (event.key === "Enter" || event.key === " ") this.choose(point);
    else return;
    event.preventDefault();
  }
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

/**
 * @param {ReturnType<typeof scale>} axis
 * @param {number} count
 * @returns {[number, number, number][]} place, value, digits
 */
function marksOf(axis, count) {
  const { at, digits } = ticks(axis.low, axis.high, count);
  return at.map((value) => [axis.of(value), value, digits]);
}

/** The last two minutes of the service: load, latency and operating point. */
export class Strip {
  /**
   * @param {HTMLElement} host
   * @param {Model} model
   */
  constructor(host, model) {
    this.model = model;
    this.rows = ["load", "p99 latency", "point, up is faster"].map((name) => {
      const value = document.createElement("span");
      value.className = "value";
      const label = document.createElement("p");
      label.append(Object.assign(document.createElement("span"), { className: "quiet", textContent: name }), " ", value);
      const picture = document.createElement("div");
      picture.className = "lane";
      host.append(label, picture);
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
    const aim = target === null ? "" : ` of ${number(target)} ms`;
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

/**
 * A number as people read it: two digits that matter below ten, whole numbers above.
 * @param {number} value
 */
export function number(value) {
  return value < 10 ? String(Math.round(10 * value) / 10) : Math.round(value).toLocaleString("en");
}
