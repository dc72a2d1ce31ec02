/**
 * The page: a picture in, a dial to turn, and where the work went.
 *
 * Turning the dial is cheap: the service is asked once it rests, the request under way is taken
 * back, and only the answer to the newest question is ever shown.
 *
 * @typedef {import("./service.js").Answer} Answer
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./picture.js").Picture} Picture
 */

import { Curve, Strip, number } from "./charts.js";
import { Dial } from "./dial.js";
import { prepare } from "./picture.js";
import { Legends, percent } from "./result.js";
import * as service from "./service.js";
import { View, packed } from "./view.js";

/** How many answers for one picture are kept, so that turning back is instant. */
const KEPT = 8;
/** How often a refused request is repeated without being told to. */
const REPEATS = 3;

const ABOUT = {
  overlay: "The classes, painted over the image. Point at a place to name it.",
  labels: "The classes alone. Point at a place to name it.",
  paused: "Tinted patches paused; the colour tells after which block.",
  entropy: "Dark where the network is sure, bright where it is not.",
  changed: "Orange where pausing changed the label.",
  image: "The image as it was sent.",
};

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const inputOf = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));
const saves = /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll("[data-output]"));

const view = new View(byId("view"));
const legends = new Legends((one) => view.shine(one));
/** @type {Model} */
let model;
/** @type {Dial} */
let dial;
/** @type {Curve} */
let curve;
/** @type {Strip} */
let strip;

/** @type {Picture | null} */
let picture = null;
/** The answers for this picture, oldest first. @type {Map<string, Answer>} */
const answers = new Map();
/** @type {Answer | null} */
let shown = null;
/** The answer without pausing. @type {Answer | null} */
let base = null;

/** Counts the questions, and the pictures: what does not belong to the newest is not shown. */
let newest = 0;
let opened = 0;
let running = new AbortController();
let basing = new AbortController();
let baseIsComing = false;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let pending;
/** @type {ReturnType<typeof setInterval> | undefined} */
let countdown;
let repeats = 0;
/** Whether the service did not answer when last asked how it is. */
let lost = false;
/** What to do again once the service is back. @type {{retry: () => void, gone: boolean} | null} */
let unheard = null;
/** What the button does. @type {() => void} */
let again = () => ask();

// Asking and showing.

/** Ask for what the dial stands at, once nothing has changed for `delay` ms. */
function ask(delay = 0) {
  newest++;
  unheard = null;
  running.abort();
  clearTimeout(pending);
  clearInterval(countdown);
  repeats = 0;
  if (!picture) return;
  byId("result").classList.add("stale");
  pending = setTimeout(run, answers.has(dial.wish()) ? 0 : delay);
}

async function run() {
  const mine = newest;
  const of = /** @type {Picture} */ (picture);
  running = new AbortController();
  byId("again").hidden = true;
  busy(true);
  try {
    const kept = answers.get(dial.wish());
    const answer = kept ?? (await service.segment(of.bytes, dial.wish(), running.signal));
    if (mine !== newest) return;
    keep(answer);
    dial.settle(answer);
    trouble("");
    await show(answer);
    if (mine !== newest) return;
    say(`${of.name}, ${of.note}. Mode ${answer.mode}: ${number(answer.milliseconds.total)} ms.`);
    if (!base) askForBase(of);
  } catch (error) {
    if (mine === newest) refused(error, run);
  } finally {
    if (mine === newest) busy(false);
  }
}

/** The same picture without pausing, asked for after the answer that people wait for. @param {Picture} of */
async function askForBase(of) {
  if (baseIsComing) return;
  baseIsComing = true;
  basing = new AbortController();
  try {
    const answer = await service.segment(of.bytes, "none", basing.signal);
    if (of !== picture) return;
    keep(answer);
    if (shown) await show(shown);
  } catch {
    // The comparison is not there yet; the next answer asks again.
  } finally {
    baseIsComing = false;
  }
}

/** Remember an answer, and forget the oldest. @param {Answer} answer */
function keep(answer) {
  const key = answer.mode;
  if (answer.mode === "none") base = answer;
  answers.delete(key);
  answers.set(key, answer);
  if (answers.size > KEPT) answers.delete(/** @type {string} */ (answers.keys().next().value));
}

/** @param {Answer} answer */
async function show(answer) {
  shown = answer;
  byId("result").classList.remove("stale");
  byId("with-name").textContent = answer.mode === "none" ? "no pausing" : answer.mode;
  showDial();
  legends.show(answer, base);
  for (const button of saves) button.disabled = false;
  await view.show(answer, base);
  const agreement = await view.agreement();
  if (shown === answer) byId("same").textContent = agreement === null ? "–" : percent(agreement);
}

function showDial() {
  dial.show(shown);
  curve.mark(dial.modeNow());
}

// Words.

/**
 * Say what went wrong, and where it may pass, offer to try again or do so.
 * @param {unknown} error
 * @param {() => void} retry
 */
function refused(error, retry) {
  const refusal = error instanceof service.Refusal ? error : null;
  const message = error instanceof Error ? error.message : String(error);
  unheard = refusal?.passing && refusal.wait === null ? { retry, gone: refusal.status === 0 } : null;
  again = retry;
  byId("wait").textContent = "";
  say("");
  if (!refusal?.passing || refusal.wait === null || repeats >= REPEATS) {
    trouble(message, refusal?.passing);
    return;
  }
  repeats++;
  let left = Math.max(1, Math.ceil(refusal.wait));
  trouble(`${message} Trying again in ${left} s.`, true);
  clearInterval(countdown);
  countdown = setInterval(() => {
    left--;
    byId("wait").textContent = `${left} s`;
    if (left > 0) return;
    clearInterval(countdown);
    retry();
  }, 1000);
}

/**
 * @param {string} text
 * @param {boolean} [passing] - whether to offer to try again
 */
function trouble(text, passing = false) {
  if (byId("trouble").textContent !== text) byId("trouble").textContent = text;
  byId("again").hidden = !passing;
}

/** @param {string} text */
const say = (text) => (byId("message").textContent = text);

/** @param {boolean} yes */
const busy = (yes) => byId("view").setAttribute("aria-busy", String(yes));

// Pictures.

/**
 * Show and segment another picture.
 * @param {() => Blob | Promise<Blob>} source
 * @param {string} name
 */
async function open(source, name) {
  const mine = ++opened;
  try {
    const next = await prepare(await source(), name);
    if (mine !== opened) return;
    basing.abort();
    baseIsComing = false;
    picture = next;
    shown = base = null;
    answers.clear();
    legends.forget();
    trouble("");
    byId("same").textContent = "–";
    byId("with-name").textContent = "with pausing";
    showDial();
    ask();
    await view.open(next);
  } catch (error) {
    if (mine === opened) refused(error, () => open(source, name));
  }
}

/** @param {FileList | undefined | null} files */
function openFirst(files) {
  const file = files && ([...files].find((one) => one.type.startsWith("image/")) ?? files[0]);
  if (file) open(() => file, file.name || "pasted image");
}

/** Save the mask or the overlay of what is shown. @param {"mask" | "overlay"} output */
async function save(output) {
  if (!picture || !shown) return;
  const { bytes, name } = picture;
  try {
    const file = await service.png(bytes, shown.mode, output);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = `${name.replace(/\.\w+$/, "")}_${output}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    refused(error, () => save(output));
  }
}

/** @param {{name: string, url: string}[]} scenes */
function offer(scenes) {
  const items = scenes.map(({ name, url }) => {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    const thumbnail = Object.assign(new Image(), { loading: "lazy", alt: "", src: url });
    button.append(thumbnail, Object.assign(document.createElement("span"), { textContent: name }));
    button.addEventListener("click", () => open(() => service.scene(url), name));
    const item = document.createElement("li");
    item.append(button);
    return item;
  });
  byId("scenes").replaceChildren(...items);
}

/** @param {DragEvent} event */
function drag(event) {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.toggle("dragging", event.type === "dragover" || event.type === "dragenter");
  if (event.type === "drop") openFirst(event.dataTransfer.files);
}

// Looking.

/** @param {string} layer */
function chooseLayer(layer) {
  const chosen = /** @type {keyof typeof ABOUT} */ (layer);
  byId("readout").textContent = ABOUT[chosen];
  if (view.layer !== chosen) view.choose(chosen);
}

/** Name the classes under the pointer. @param {PointerEvent} event */
async function pointAt(event) {
  const found = await view.under(event);
  if (!found) return;
  const nameOf = /** @param {number} pixel */ (pixel) =>
    model.classes.find((one) => packed(one.colour) === pixel)?.name ?? "no class";
  const here = nameOf(found.here);
  const there = found.there === null ? here : nameOf(found.there);
  byId("readout").textContent = here === there ? here : `${here}; without pausing ${there}`;
}

/** Follow the service as long as the page is looked at. */
async function follow() {
  let next = 1000;
  if (!document.hidden) {
    try {
      const status = await service.status(AbortSignal.timeout(5000));
      strip.show(status);
      byId("totals").textContent =
        `${number(status.accepted)} accepted, ${number(status.refused)} refused, ` +
        `${number(status.queue)} waiting, ${number(status.changes)} changes of the operating point.`;
      await welcome();
    } catch {
      next = 3000;
      lost = true;
      byId("totals").textContent = "The service does not answer; still asking.";
    }
  }
  setTimeout(follow, next);
}

/** The service answers: where it was lost it may have a new target, and what failed is tried again. */
async function welcome() {
  if (lost) model.latency_ms = (await service.model()).latency_ms;
  const failed = unheard && (lost || unheard.gone) ? unheard : null;
  lost = false;
  if (!failed) return;
  unheard = null;
  failed.retry();
}

// Starting.

function listen() {
  /** @param {Event} event */
  const valueOf = (event) => /** @type {HTMLInputElement} */ (event.target).value;
  byId("layers").addEventListener("change", (event) => chooseLayer(valueOf(event)));
  byId("compare").addEventListener("change", (event) => view.arrange(/** @type {"swipe" | "beside"} */ (valueOf(event))));
  byId("view").addEventListener("pointermove", pointAt);
  byId("view").addEventListener("pointerleave", () => chooseLayer(view.layer));
  byId("try").addEventListener("click", () => again());
  for (const button of saves) {
    button.addEventListener("click", () => save(/** @type {"mask" | "overlay"} */ (button.dataset.output)));
  }
  for (const id of ["file", "camera"]) {
    inputOf(id).addEventListener("change", () => {
      openFirst(inputOf(id).files);
      inputOf(id).value = ""; // so that the same file can be chosen again
    });
  }
  document.addEventListener("paste", (event) => openFirst(event.clipboardData?.files));
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => drag(/** @type {DragEvent} */ (event)));
  }
}

/** The model, asked for until there is an answer. @returns {Promise<Model>} */
async function awaitModel() {
  for (let wait = 1; ; wait = Math.min(2 * wait, 10)) {
    try {
      return await service.model();
    } catch (error) {
      trouble(`${/** @type {Error} */ (error).message} Trying again in ${wait} s.`);
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
    }
  }
}

async function start() {
  model = await awaitModel();
  trouble("");
  byId("model").textContent =
    `${model.name}: ${model.blocks} blocks, patches of ${model.patch.join(" × ")} pixels, ${model.classes.length} classes`;
  document.title = `paumer: ${model.name}`;
  legends.know(model.classes);
  const turned = /** @param {number} delay */ (delay) => {
    trouble("");
    showDial();
    ask(delay);
  };
  dial = new Dial(model, turned, trouble);
  curve = new Curve(byId("curve"), model, (point) => dial.turnTo(point), (text) => (byId("curve-facts").textContent = text));
  strip = new Strip(byId("strip"), model);
  chooseLayer("overlay");
  listen();
  showDial();
  follow();
  const scenes = await service.scenes().catch(() => []);
  offer(scenes);
  if (scenes.length > 0 && !picture) open(() => service.scene(scenes[0].url), scenes[0].name);
}

start();
