/**
 * A mode as the page reads, changes and explains it: `STAGES [exit] [by=NAME] [protect=a+b] [size=288]`.
 *
 * The service has the last word on every mode; this only has to understand what it spells.
 *
 * @typedef {{text: string, first: number, last: number, merges: boolean, amount: string}} Stage
 *   Blocks from first to last; the amount is a ratio, or a threshold such as <0.3.
 * @typedef {{stages: Stage[], words: string[]}} Parsed
 */

/** @param {string} text */
export function parse(text) {
  const [stages = "none", ...words] = tidy(text).split(/\s+/);
  const parts = stages === "none" || stages === "" ? [] : stages.split(",");
  return { stages: parts.map(stageOf), words };
}

/** Without the blanks that stages may be written with. @param {string} text */
export const tidy = (text) => text.replaceAll(/\s*([,:<~])\s*/g, "$1").trim() || "none";

/**
 * @param {string} text
 * @returns {Stage}
 */
function stageOf(text) {
  const found = /^(\d+)(?::(<?)|(?:-(\d+))?:~)(\d*\.?\d+)$/.exec(text);
  if (!found) throw new Error(`“${text}” is not a stage: write a block, a colon and a ratio, such as 3:0.4,5:0.4, or 1-6:~0.1 to merge, or none.`);
  const [, first, sign = "", last = first, amount] = found;
  return { text, first: Number(first), last: Number(last), merges: text.includes("~"), amount: sign + amount };
}

/** @param {Parsed} mode */
function spell({ stages, words }) {
  return [stages.map((stage) => stage.text).join(",") || "none", ...words].join(" ");
}

/**
 * What is wrong with a mode's stages, in words; the service checks the rest.
 * @param {string} text
 * @param {number} blocks
 */
export function problemWith(text, blocks) {
  try {
    for (const { first, last, merges, amount } of parse(text).stages) {
      for (const block of [first, last]) {
        if (block < 1 || block > blocks) return `There is no block ${block}: this model has blocks 1 to ${blocks}.`;
      }
      if (merges && Number(amount) > 0.5) return `The ratio ${amount} is too large: at most half of the patches are merged, 0.5.`;
      if (!merges && Number(amount) > 1) return `The ratio ${amount} is too large: it is below 1, such as 0.4, or 1 for all.`;
    }
    return "";
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/** @param {Stage} stage */
const leaves = (stage) => !stage.merges && Number(stage.amount) === 1;

/** What the size control stands at: "" as trained, a side, or full. @param {string} mode */
export const sizeOf = (mode) => parse(mode).words.find((word) => word.startsWith("size="))?.slice(5) ?? "";

/** @param {string} mode @param {string} size */
export function withSize(mode, size) {
  const { stages, words } = parse(mode);
  const others = words.filter((word) => !word.startsWith("size="));
  return spell({ stages, words: size ? [...others, `size=${size}`] : others });
}

/** The mergings, as they are spelled: "" for none. @param {string} mode */
export const mergingOf = (mode) => parse(mode).stages.filter((stage) => stage.merges).map((stage) => stage.text).join(",");

/** @param {string} mode @param {string} merging */
export function withMerging(mode, merging) {
  const { stages, words } = parse(mode);
  const pauses = stages.filter((stage) => !stage.merges);
  return spell({ stages: [...parse(merging).stages, ...pauses], words });
}

/** What the exit control stands at: "" for none, "exit", or the block after which all leave. @param {string} mode */
export function exitOf(mode) {
  const { stages, words } = parse(mode);
  if (!words.includes("exit")) return "";
  const all = stages.find(leaves);
  return all ? String(all.first) : "exit";
}

/** @param {string} mode @param {string} exit */
export function withExit(mode, exit) {
  const { stages, words } = parse(mode);
  const block = exit === "exit" || exit === "" ? Infinity : Number(exit);
  const stay = stages.filter((stage) => !leaves(stage) && (stage.merges ? stage.last <= block : stage.first < block));
  if (block < Infinity) stay.push(stageOf(`${block}:1`));
  const others = words.filter((word) => word !== "exit");
  const exits = exit !== "" && stay.some((stage) => !stage.merges);
  return spell({ stages: stay, words: exits ? ["exit", ...others] : others });
}

/** A mode in words. @param {string} mode */
export function explain(mode) {
  const { stages, words } = parse(mode);
  const size = sizeOf(mode);
  const merges = stages.filter((stage) => stage.merges);
  const pauses = stages.filter((stage) => !stage.merges && !leaves(stage));
  const all = stages.find(leaves);
  const exits = words.includes("exit");
  const by = words.includes("by=neighbours") ? ", scored with their neighbours" : "";
  const parts = [
    stages.length === 0 && "no pausing",
    size === "full" ? "images at their full size" : size && `images scaled to ${size}`,
    ...merges.map(({ first, last, amount }) =>
      `${share(amount)} merged after ${first === last ? `block ${first}` : `each of blocks ${first} to ${last}`}`),
    pauses.length > 0 && `${pauses.map(pauseInWords).join(", ")}${by}${exits && !all ? "; paused patches exit early" : ""}`,
    all && `all exit after block ${all.first}`,
    ...words.filter((word) => word.startsWith("protect=")).map((word) =>
      `${decodeURIComponent(word.slice(8)).replaceAll("+", ", ")} pause last`),
  ];
  const text = parts.filter(Boolean).join("; ");
  return text[0].toUpperCase() + text.slice(1);
}

/**
 * @param {Stage} stage
 * @param {number} index
 */
function pauseInWords({ first, amount }, index) {
  const who = amount.startsWith("<") ? `patches scored below ${amount.slice(1)}` : `${share(amount)} of ${index ? "the rest" : "the patches"}`;
  return `${who} ${index ? "" : "pause "}after block ${first}`;
}

/** @param {string} ratio */
const share = (ratio) => `${Math.round(1000 * Number(ratio)) / 10} %`;
