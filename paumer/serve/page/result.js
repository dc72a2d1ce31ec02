/**
 * What an answer says in numbers: time, work, where the patches went, and the classes.
 *
 * @typedef {import("./service.js").Answer} Answer
 * @typedef {import("./service.js").ClassOf} ClassOf
 */

import { number } from "./charts.js";

/** The tints of the first, second, ... pause of a configuration, as the service paints them. */
export const BLOCK_COLOURS = ["#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442"];

/**
 * A share as people read it; what is not quite nothing or all is not rounded to it.
 * @param {number} share
 */
export function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  if (value > 99 && value < 100) return `${(Math.floor(10 * value) / 10).toFixed(1)} %`;
  return `${value.toFixed(value > 0 && value < 9.95 ? 1 : 0)} %`;
}

export class Legends {
  /** @param {(one: ClassOf | null) => void} shine - called with the class to stand out, or none */
  constructor(shine) {
    this.shine = shine;
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    this.sorted = false;
    /** @type {ClassOf | null} */
    this.lit = null;
  }

  /** @param {ClassOf[]} classes */
  know(classes) {
    for (const one of classes) {
      const row = makeRow(one.name, `rgb(${one.colour.join(" ")})`, "button");
      row.body.setAttribute("aria-pressed", "false");
      row.body.addEventListener("click", () => this.light(this.lit === one ? null : one));
      this.rows.set(one.name, row);
    }
  }

  /** Let a class stand out, or none. @param {ClassOf | null} one */
  light(one) {
    this.lit = one;
    for (const [name, row] of this.rows) row.body.setAttribute("aria-pressed", String(name === one?.name));
    this.shine(one);
  }

  /** Another picture comes: sort its classes anew. */
  forget() {
    this.sorted = false;
  }

  /**
   * @param {Answer} answer
   * @param {Answer | null} base - the answer without pausing, where known
   */
  show(answer, base) {
    this.showNumbers(answer, base);
    this.showBlocks(answer);
    const shares = answer.shares;
    const host = place("classes");
    if (this.lit && !shares[this.lit.name]) this.light(null);
    // Once a picture, so that no row moves under the hand that turns the dial.
    if (!this.sorted) {
      const byShare = [...this.rows].sort((a, b) => (shares[b[0]] ?? 0) - (shares[a[0]] ?? 0));
      host.replaceChildren(...byShare.map(([, row]) => row.item));
      this.sorted = true;
    }
    const most = Math.max(...Object.values(shares));
    for (const [name, row] of this.rows) {
      const share = shares[name] ?? 0;
      row.item.hidden = share === 0;
      row.share.textContent = percent(share);
      row.bar.style.setProperty("--share", String(share / most));
    }
  }

  /**
   * @param {Answer} answer
   * @param {Answer | null} base
   */
  showNumbers(answer, base) {
    const { queue, compute, encode, total } = answer.milliseconds;
    place("time").textContent = `${number(total)} ms`;
    place("time-parts").textContent = `queue ${number(queue)}, compute ${number(compute)}, encode ${number(encode)}`;
    place("saved").textContent = percent(Math.max(0, 1 - answer.work));
    const faster = base && base !== answer ? base.milliseconds.compute / compute : null;
    place("saved-facts").textContent = faster ? `${faster.toFixed(2)}\u00a0× as fast, this time` : "of the multiply-adds";
  }

  /** @param {Answer} answer */
  showBlocks(answer) {
    const [pauses] = answer.mode.split(" ");
    const stages = pauses.split(",").filter((part) => /^\d+:[^~]/.test(part)).map((part) => String(parseInt(part, 10)));
    const rows = [...stages, "0"].map((block, i) => {
      const last = block === "0";
      const share = answer.blocks[block] ?? 0;
      const row = makeRow(last ? "to the end" : `paused after block ${block}`, last ? "" : BLOCK_COLOURS[i % BLOCK_COLOURS.length], "span");
      row.share.textContent = percent(share);
      row.bar.remove();
      const part = document.createElement("i");
      part.style.flexGrow = String(share);
      part.style.background = row.swatch.style.background;
      return { row, part };
    });
    const merged = makeRow("of all: merged into a similar patch", "", "span");
    merged.swatch.classList.add("striped");
    merged.share.textContent = percent(answer.merged);
    merged.item.hidden = !pauses.includes("~");
    place("blocks").replaceChildren(...rows.map(({ row }) => row.item), merged.item);
    place("blocks-bar").replaceChildren(...rows.map(({ part }) => part));
  }
}

/**
 * One line of a legend.
 * @typedef {ReturnType<typeof makeRow>} Row
 * @param {string} name
 * @param {string} colour
 * @param {"button" | "span"} kind
 */
function makeRow(name, colour, kind) {
  const item = document.createElement("li");
  const body = document.createElement(kind);
  if (body instanceof HTMLButtonElement) body.type = "button";
  body.className = "row";
  const [swatch, label, bar, share] = ["swatch", "label", "share-bar", "share"].map((role) =>
    Object.assign(document.createElement("span"), { className: role }));
  swatch.style.background = colour;
  label.textContent = name;
  body.append(swatch, label, bar, share);
  item.append(body);
  return { item, body, swatch, bar, share };
}

/** @param {string} id */
const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
