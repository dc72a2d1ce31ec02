/**
 * The page: a picture in, a dial to turn, and where the work went.
 *
 * The dial asks at most once for each place it rests at: moving it takes back the request under
 * way, and only the answer to the newest wish is ever shown.
 *
 * @typedef {import("./service.js").Answer} Answer
 * @typedef {import("./service.js").Model} Model
 * @typedef {import("./service.js").Point} Point
 * @typedef {import("./picture.js").Picture} Picture
 * @typedef {{pause: string, early: boolean, auto: boolean}} Setting What the dial stands at.
 */

import { Curve, Strip, factsOf, keyOf, number } from "./charts.js";
import { prepare } from "./picture.js";
import { Legends, percent } from "./result.js";
import * as service from "./service.js";
import { View, packed } from "./view.js";

/** How long the dial must rest before the service is asked. */
const REST = 150;
/** How many answers for one picture are kept, so that turning back is instant. */
const KEPT = 8;
/** How often a refused request is repeated without being told to. */
const REPEATS = 3;

const ABOUT = {
  overlay: "The classes, painted over the picture. Point at a place to name it.",
  labels: "The classes alone. Point at a place to name it.",
  paused: "Tinted patches paused; the colour tells after which block.",
  entropy: "Dark where the network is sure, bright where it is not.",
  changed: "Orange where pausing changed the label.",
  picture: "The picture as it was sent.",
};

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const inputOf = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));

/** @type {Model} */
let model;
/** @type {Point[]} */
let points = [];
/** @type {Setting} */
let setting = { pause: "none", early: false, auto: false };
/** @type {Picture | null} */
let picture = null;
/** @type {Map<string, Answer>} */
const answers = new Map();
/** @type {Answer | null} */
let shown = null;
/** @type {Answer | null} */
let base = null;
/** @type {Picture | null} */
let baseAskedFor = null;
let newest = 0;
let running = new AbortController();
let basing = new AbortController();
let repeats = 0;
let unreachable = false;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let pending;
/** @type {ReturnType<typeof setInterval> | undefined} */
let countdown;

const view = new View(byId("view"));
const legends = new Legends((one) => view.shine(one));
/** @type {Curve} */
let curve;
/** @type {Strip} */
let strip;

// The dial.

/** Stand at an operating point. @param {number} index */
function turnTo(index) {
  const point = points[index];
  set({ pause: point.pause, early: point.early_exit, auto: false }, REST);
}

/**
 * Stand somewhere, and ask for it.
 * @param {Setting} wanted
 * @param {number} [delay]
 */
function set(wanted, delay = 0) {
  setting = wanted;
  sayTroubleWith("");
  showSetting();
  ask(delay);
}

/** The place on the dial of what is set, or of what the service chose; -1 for none. */
function placeOf() {
  if (setting.auto) return shown ? points.findIndex((p) => same(p, shown)) : -1;
  return points.findIndex((p) => p.pause === setting.pause && p.early_exit === setting.early);
}

/**
 * @param {Point} point
 * @param {Answer | null} answer
 */
const same = (point, answer) => answer !== null && keyOf(point) === keyOf(answer);

function showSetting() {
  const dial = inputOf("dial");
  const place = placeOf();
  if (place >= 0) dial.value = String(place);
  dial.classList.toggle("off", place < 0);
  const known = points[place];
  const pause = setting.auto ? shown?.pause ?? "auto" : setting.pause;
  const early = setting.auto ? shown?.early_exit ?? false : setting.early;
  const facts = known ? factsOf(known) : `${pause === "none" ? "no pausing" : `pause ${pause}`}, not measured`;
  const name = known?.name ?? pause;
  byId("point").textContent = setting.auto ? `auto: ${name === "auto" ? "not yet chosen" : name}` : name;
  byId("point-facts").textContent = points.length > 1 ? facts : `${facts}. This model has no other operating points yet: paumer tune names them.`;
  dial.setAttribute("aria-valuetext", `${name}: ${facts}`);
  inputOf("auto").checked = setting.auto;
  inputOf("early").checked = early;
  if (document.activeElement !== inputOf("pause")) inputOf("pause").value = setting.auto ? "auto" : pause;
  curve.mark({ pause, early_exit: early });
}

/** Take the configuration from the text field, if it is one. */
function readField() {
  const text = inputOf("pause").value.replaceAll(/\s/g, "") || "none";
  const named = points.findIndex((point) => point.name === text);
  const problem = named >= 0 || text === "auto" ? "" : problemWith(text);
  sayTroubleWith(problem);
  if (problem) return;
  if (named >= 0) turnTo(named);
  else set({ pause: text === "auto" ? setting.pause : text, early: setting.early, auto: text === "auto" });
}

/** What is wrong with a configuration, in words; the service checks the rest. @param {string} text */
function problemWith(text) {
  if (text === "none") return "";
  for (const part of text.split(",")) {
    const found = /^(\d+):<?(\d*\.?\d+)$/.exec(part);
    if (!found) return `“${part}” is no pause: write a block, a colon and a share, such as 3:0.4,5:0.4, or none.`;
    const block = Number(found[1]);
    if (block < 1 || block > model.blocks) return `There is no block ${block}: this model has blocks 1 to ${model.blocks}.`;
    if (!part.includes("<") && Number(found[2]) >= 1) return `The share ${found[2]} is too large: it is below 1, such as 0.4.`;
  }
  return "";
}

/** @param {string} problem */
function sayTroubleWith(problem) {
  inputOf("pause").setAttribute("aria-invalid", String(problem !== ""));
  if (problem) trouble(problem);
}

// Asking and showing.

/** Ask for what is set, once nothing has changed for `delay` ms. @param {number} [delay] */
function ask(delay = 0) {
  newest++;
  running.abort();
  clearTimeout(pending);
  clearInterval(countdown);
  repeats = 0;
  if (!picture) return;
  byId("result").classList.add("stale");
  if (answers.has(keyNow())) delay = 0;
  pending = setTimeout(run, delay);
}

const keyNow = () => (setting.auto ? "auto" : keyOf({ pause: setting.pause, early_exit: setting.early }));

async function run() {
  const mine = newest;
  const of = /** @type {Picture} */ (picture);
  running = new AbortController();
  byId("again").hidden = true;
  busy(true);
  try {
    const kept = answers.get(keyNow());
    const wish = setting.auto ? { pause: "auto", early: null } : { pause: setting.pause, early: setting.early };
    const answer = kept ?? (await service.segment(of.bytes, wish, running.signal));
    if (mine !== newest) return;
    if (!setting.auto) keep(answer);
    repeats = 0;
    trouble("");
    await show(answer);
    say(`${of.name}, ${of.note}. Pause ${answer.pause}: ${number(answer.milliseconds.total)} ms.`);
    if (!base) askForBase(of);
  } catch (error) {
    if (mine === newest) refused(error);
  } finally {
    if (mine === newest) busy(false);
  }
}

/** The same picture without pausing, asked for once and after the answer people wait for. @param {Picture} of */
async function askForBase(of) {
  if (baseAskedFor === of) return;
  baseAskedFor = of;
  try {
    const answer = await service.segment(of.bytes, { pause: "none", early: false }, basing.signal);
    if (of !== picture) return;
    keep(answer);
    if (shown) await show(shown);
  } catch {
    // The comparison is not there yet; the next answer asks again.
  } finally {
    if (baseAskedFor === of) baseAskedFor = null;
  }
}

/** Remember an answer, and forget the oldest. @param {Answer} answer */
function keep(answer) {
  if (answer.pause === "none" && !answer.early_exit) base = answer;
  answers.delete(keyOf(answer));
  answers.set(keyOf(answer), answer);
  if (answers.size > KEPT) answers.delete(/** @type {string} */ (answers.keys().next().value));
}

/** @param {Answer} answer */
async function show(answer) {
  shown = answer;
  byId("result").classList.remove("stale");
  byId("with-name").textContent = answer.pause === "none" ? "no pausing" : `pause ${answer.pause}`;
  showSetting();
  legends.show(answer, base);
  for (const button of document.querySelectorAll("[data-output]")) /** @type {HTMLButtonElement} */ (button).disabled = false;
  await view.show(answer, base);
  const agreement = await view.agreement();
  if (shown === answer) byId("same").textContent = agreement === null ? "–" : percent(agreement);
}

/** @param {unknown} error */
function refused(error) {
  const refusal = error instanceof service.Refusal ? error : null;
  unreachable = refusal?.status === 0;
  byId("again").hidden = !refusal?.passing;
  byId("wait").textContent = "";
  say("");
  if (!refusal?.passing || refusal.wait === null || repeats >= REPEATS) {
    trouble(error instanceof Error ? error.message : String(error));
    return;
  }
  repeats++;
  let left = Math.max(1, Math.ceil(refusal.wait));
  trouble(`${refusal.message} Trying again in ${left} s.`);
  clearInterval(countdown);
  countdown = setInterval(() => {
    left--;
    byId("wait").textContent = left > 0 ? `${left} s` : "";
    if (left > 0) return;
    clearInterval(countdown);
    run();
  }, 1000);
}

/** @param {string} text */
function trouble(text) {
  if (byId("trouble").textContent !== text) byId("trouble").textContent = text;
  if (!text) byId("again").hidden = true;
}

/** @param {string} text */
const say = (text) => (byId("message").textContent = text);

/** @param {boolean} yes */
const busy = (yes) => byId("view").setAttribute("aria-busy", String(yes));

// Pictures.

/**
 * Show and segment another picture.
 * @param {Blob | Promise<Blob>} source
 * @param {string} name
 */
async function open(source, name) {
  const mine = ++newest;
  running.abort();
  basing.abort();
  clearTimeout(pending);
  clearInterval(countdown);
  trouble("");
  busy(true);
  try {
    const next = await prepare(await source, name);
    if (mine !== newest) return;
    basing = new AbortController();
    picture = next;
    shown = base = null;
    answers.clear();
    legends.forget();
    byId("same").textContent = "–";
    byId("with-name").textContent = "with pausing";
    await view.open(next);
    if (mine === newest) ask();
  } catch (error) {
    if (mine !== newest) return;
    busy(false);
    refused(error);
  }
}

/** @param {FileList | undefined | null} files */
function openFirst(files) {
  const file = files && ([...files].find((one) => one.type.startsWith("image/")) ?? files[0]);
  if (file) open(file, file.name || "pasted picture");
}

/** Save the mask or the overlay of what is shown. @param {"mask" | "overlay"} output */
async function save(output) {
  if (!picture || !shown) return;
  try {
    const bytes = await service.png(picture.bytes, { pause: shown.pause, early: shown.early_exit }, output);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(bytes);
    link.download = `${picture.name.replace(/\.\w+$/, "")}_${output}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    trouble(error instanceof Error ? error.message : String(error));
  }
}

/** @param {{name: string, url: string}[]} all */
function offer(all) {
  for (const { name, url } of all) {
    const button = document.createElement("button");
    button.type = "button";
    const thumbnail = Object.assign(new Image(96, 72), { src: url, alt: "", loading: "lazy" });
    button.append(thumbnail, Object.assign(document.createElement("span"), { textContent: name }));
    button.addEventListener("click", () => open(service.scene(url), name));
    const item = document.createElement("li");
    item.append(button);
    byId("scenes").append(item);
  }
}

// The service.

/** Follow the service's state as long as the page is looked at. */
async function follow() {
  let next = 1000;
  if (!document.hidden) {
    try {
      const status = await service.status(AbortSignal.timeout(5000));
      strip.show(status);
      byId("totals").textContent = `${number(status.accepted)} accepted, ${number(status.refused)} refused, ${number(status.queue)} waiting, ${number(status.changes)} changes of the operating point.`;
      if (unreachable) {
        unreachable = false;
        ask();
      }
    } catch {
      next = 3000;
      byId("totals").textContent = "The service does not answer; still asking.";
    }
  }
  setTimeout(follow, next);
}

function listen() {
  inputOf("dial").addEventListener("input", () => turnTo(Number(inputOf("dial").value)));
  inputOf("auto").addEventListener("change", () => set({ ...setting, auto: inputOf("auto").checked }));
  inputOf("early").addEventListener("change", () =>
    set({ pause: setting.auto ? shown?.pause ?? "none" : setting.pause, early: inputOf("early").checked, auto: false }));
  byId("custom").addEventListener("submit", (event) => {
    event.preventDefault();
    readField();
  });
  byId("layers").addEventListener("change", (event) => chooseLayer(/** @type {HTMLInputElement} */ (event.target).value));
  byId("compare").addEventListener("change", (event) =>
    view.arrange(/** @type {"swipe" | "beside"} */ (/** @type {HTMLInputElement} */ (event.target).value)));
  byId("again").addEventListener("click", (event) => {
    if (event.target instanceof HTMLButtonElement) ask();
  });
  for (const button of document.querySelectorAll("[data-output]")) {
    button.addEventListener("click", () => save(/** @type {"mask" | "overlay"} */ (button.getAttribute("data-output"))));
  }
  byId("view").addEventListener("pointermove", pointAt);
  byId("view").addEventListener("pointerleave", () => chooseLayer(view.layer));
  for (const id of ["file", "camera"]) {
    inputOf(id).addEventListener("change", () => {
      openFirst(inputOf(id).files);
      inputOf(id).value = "";
    });
  }
  document.addEventListener("paste", (event) => openFirst(event.clipboardData?.files));
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => drag(/** @type {DragEvent} */ (event)));
  }
}

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

/** @param {DragEvent} event */
function drag(event) {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  const over = event.type === "dragover" || event.type === "dragenter";
  document.body.classList.toggle("dragging", over);
  if (event.type === "drop") openFirst(event.dataTransfer.files);
}

async function start() {
  for (let wait = 1; ; wait = Math.min(2 * wait, 10)) {
    try {
      model = await service.model();
      break;
    } catch (error) {
      trouble(`${/** @type {Error} */ (error).message} Trying again in ${wait} s.`);
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
    }
  }
  trouble("");
  const plain = { name: null, pause: "none", early_exit: false, miou: null, speed_up: null, latency_ms: null };
  points = model.points.length > 0 ? model.points : [plain];
  byId("model").textContent = `${model.name}: ${model.blocks} blocks, patches of ${model.patch} pixels, ${model.classes.length} classes`;
  document.title = `paumer: ${model.name}`;
  inputOf("dial").max = String(points.length - 1);
  inputOf("dial").disabled = points.length < 2;
  byId("ticks").replaceChildren(...points.map(() => document.createElement("i")));
  legends.know(model.classes);
  const choose = /** @param {Point} point */ (point) => set({ pause: point.pause, early: point.early_exit, auto: false });
  curve = new Curve(byId("curve"), model, choose, (text) => (byId("curve-facts").textContent = text));
  strip = new Strip(byId("strip"), model);
  chooseLayer("overlay");
  listen();
  const middle = points[Math.floor(points.length / 2)];
  setting = { pause: middle.pause, early: middle.early_exit, auto: false };
  showSetting();
  follow();
  const scenes = await service.scenes().catch(() => []);
  offer(scenes);
  if (scenes.length > 0 && !picture) open(service.scene(scenes[0].url), scenes[0].name);
}

start();
