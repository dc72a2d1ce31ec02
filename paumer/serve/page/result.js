/**
 * What an answer says in numbers: time, work, where the patches went, and the classes.
 *
 * @typedef {import("./service.js").Answer} Answer
 * @typedef {import("./service.js").ClassOf} ClassOf
 */

import { byId, make, percent, times } from "./dom.js";
import { parse } from "./mode.js";

/** The tints of the first, second, ... pause of a configuration, as the service paints them. */
export const BLOCK_COLOURS = ["#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442"];

/** The parts of an answer's time, in their order. @type {["decode" | "queue" | "compute" | "encode", string][]} */
const PARTS = [["decode", "decode"], ["queue", "wait"], ["compute", "network"], ["encode", "encode"]];

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
   * @param {number} runs - of which these are the fastest
   */
  show(answer, base, runs) {
    showNumbers(answer, base, runs);
    showBlocks(answer);
    const shares = answer.shares;
    if (this.lit && !shares[this.lit.name]) this.light(null);
    // Once a picture, so that no row moves under the hand that turns the dial.
    if (!this.sorted) {
      const byShare = [...this.rows].sort((a, b) => (shares[b[0]] ?? 0) - (shares[a[0]] ?? 0));
      byId("classes").replaceChildren(...byShare.map(([, row]) => row.item));
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
}

/**
 * The speed-up of an answer on its image, null before it is known.
 * @param {Answer} answer
 * @param {Answer | null} base
 */
export const speedUp = (answer, base) => base && base.milliseconds.compute / answer.milliseconds.compute;

/**
 * @param {Answer} answer
 * @param {Answer | null} base
 * @param {number} runs
 */
function showNumbers(answer, base, runs) {
  const spans = answer.milliseconds;
  const parts = wholes(PARTS.map(([name]) => spans[name]));
  byId("time").textContent = `${parts.reduce((a, b) => a + b, 0).toLocaleString("en")} ms`;
  byId("time-parts").textContent = PARTS.map(([, word], i) => `${word} ${parts[i].toLocaleString("en")}`).join(" + ");
  const faster = speedUp(answer, base);
  byId("speed").textContent = faster ? times(faster) : "–";
  const against = base && `network ${parts[2].toLocaleString("en")} ms, without pausing ${wholes([base.milliseconds.compute])[0].toLocaleString("en")} ms`;
  byId("speed-facts").textContent = against ? `${against}${runs > 1 ? `; the fastest of ${runs} runs` : ""}` : "of the network, against no pausing";
  byId("saved").textContent = percent(Math.max(0, 1 - answer.work));
}

/**
 * Whole numbers with the same sum, to the nearest whole: the largest fractions are rounded up.
 * @param {number[]} values
 */
export function wholes(values) {
  const down = values.map((value) => Math.floor(Math.max(0, value)));
  let missing = Math.round(values.reduce((a, b) => a + b, 0)) - down.reduce((a, b) => a + b, 0);
  const byFraction = values.map((value, i) => ({ i, part: value - down[i] })).sort((a, b) => b.part - a.part);
  for (const { i } of byFraction) if (missing-- > 0) down[i]++;
  return down;
}

/** @param {Answer} answer */
function showBlocks(answer) {
  const { stages } = parse(answer.mode);
  const pauses = stages.filter((stage) => !stage.merges).map((stage) => String(stage.first));
  const rows = [...pauses, "0"].map((block, i) => {
    const last = block === "0";
    const share = answer.blocks[block] ?? 0;
    const row = makeRow(last ? "to the end" : `paused after block ${block}`, last ? "" : BLOCK_COLOURS[i % BLOCK_COLOURS.length], "span");
    row.share.textContent = percent(share);
    row.bar.remove();
    const part = make("i");
    part.style.flexGrow = String(share);
    part.style.background = row.swatch.style.background;
    return { row, part };
  });
  const merged = makeRow("of all: merged into a similar patch", "", "span");
  merged.share.textContent = percent(answer.merged);
  merged.item.hidden = stages.length === pauses.length;
  byId("blocks").replaceChildren(...rows.map(({ row }) => row.item), merged.item);
  byId("blocks-bar").replaceChildren(...rows.map(({ part }) => part));
}

/**
 * One line of a legend.
 * @typedef {ReturnType<typeof makeRow>} Row
 * @param {string} name
 * @param {string} colour
 * @param {"button" | "span"} kind
 */
function makeRow(name, colour, kind) {
  const [swatch, label, bar, share] = ["swatch", "label", "share-bar", "share"].map((className) => make("span", { className }));
  const body = make(kind, { className: "row" }, swatch, label, bar, share);
  if (body instanceof HTMLButtonElement) body.type = "button";
  swatch.style.background = colour;
  label.textContent = name;
  return { item: make("li", {}, body), body, swatch, bar, share };
}
