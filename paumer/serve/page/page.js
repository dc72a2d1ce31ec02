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

import { Curve } from "./charts.js";
import { Dial } from "./dial.js";
import { byId, make, number, percent } from "./dom.js";
import { offerScenes, takeFiles } from "./picker.js";
import { prepare } from "./picture.js";
import { Legends, speedUp } from "./result.js";
import * as service from "./service.js";
import { Strip } from "./strip.js";
import { Film } from "./video.js";
import { View, aboutLayer, packed } from "./view.js";

/** How many answers for one picture are kept, so that turning back is instant. */
const KEPT = 8;
/** How often a refused request is repeated without being told to. */
const REPEATS = 3;
/** How often a mode runs on a picture: of its times the fastest counts, because noise only adds. */
const RUNS = 5;

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
/** @type {Film} */
let film;

/** @type {Picture | null} */
let picture = null;
/** The fastest answers for this picture, oldest first, and of how many runs. @type {Map<string, {answer: Answer, runs: number}>} */
const answers = new Map();
/** The mode that is shown. @type {string | null} */
let shown = null;

/** Counts the questions, and the pictures: what does not belong to the newest is not shown. */
let newest = 0;
let opened = 0;
let running = new AbortController();
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
  const { signal } = (running = new AbortController());
  byId("again").hidden = true;
  busy(true);
  try {
    const kept = answers.get(dial.wish())?.answer;
    const answer = kept ?? (await service.segment(of.bytes, dial.wish(), signal));
    if (mine !== newest) return;
    if (!kept) keep(answer);
    dial.settle(answer);
    trouble("");
    await show(answer.mode);
    if (mine !== newest) return;
    say(`${of.name}, ${of.note}. Mode ${answer.mode}.`);
    busy(false);
    await compare(of, answer.mode, signal);
  } catch (error) {
    if (mine === newest) refused(error, run);
  } finally {
    if (mine === newest) busy(false);
  }
}

/**
 * Run the picture without pausing and in the mode by turns, after the answer that people wait for.
 * @param {Picture} of
 * @param {string} mode
 * @param {AbortSignal} signal
 */
async function compare(of, mode, signal) {
  for (let run = 1; run <= RUNS; run++) {
    for (const one of ["none", mode]) {
      if ((answers.get(one)?.runs ?? 0) >= run) continue;
      try {
        const answer = await service.segment(of.bytes, one, signal, { priority: "low" });
        if (signal.aborted || of !== picture) return;
        keep(answer);
        await show(mode);
      } catch {
        return; // Others come first; the next turn of the dial tries again.
      }
    }
  }
}

/** Remember an answer if it is the fastest of its mode, and forget the oldest mode. @param {Answer} answer */
function keep(answer) {
  const before = answers.get(answer.mode);
  const faster = !before || answer.milliseconds.compute < before.answer.milliseconds.compute;
  answers.delete(answer.mode);
  answers.set(answer.mode, { answer: faster ? answer : before.answer, runs: (before?.runs ?? 0) + 1 });
  const oldest = [...answers.keys()].find((mode) => mode !== "none");
  if (answers.size > KEPT && oldest) answers.delete(oldest);
}

/** The answer without pausing, where it is there. */
const baseline = () => answers.get("none")?.answer ?? null;

/** @param {string} mode */
async function show(mode) {
  const kept = answers.get(mode);
  if (!kept) return;
  const { answer, runs } = kept;
  const base = baseline();
  shown = mode;
  byId("result").classList.remove("stale");
  byId("with-name").textContent = mode === "none" ? "no pausing" : mode;
  showDial();
  showAbout();
  legends.show(answer, base, Math.min(runs, answers.get("none")?.runs ?? 0));
  for (const button of saves) button.disabled = false;
  await view.show(answer, base);
  const agreement = await view.agreement();
  if (shown === mode) byId("same").textContent = agreement === null ? "–" : percent(agreement);
}

function showDial() {
  const answer = shown === null ? null : answers.get(shown)?.answer ?? null;
  dial.show(answer);
  const mode = dial.modeNow();
  curve.mark(mode, answer && answer.mode === mode ? speedUp(answer, baseline()) : null);
}

/** Say in a sentence what the layer shows. */
const showAbout = () => (byId("about").textContent = aboutLayer(view.layer, shown ?? "none", model.blocks));

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

// Pictures and videos.

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
    leave(next);
    ask();
    await view.open(next);
  } catch (error) {
    if (mine === opened) refused(error, () => open(source, name));
  }
}

/** Leave what was there, for another picture or a video. @param {Picture | null} next */
function leave(next) {
  film.close();
  document.body.classList.toggle("filming", !next);
  picture = next;
  shown = null;
  answers.clear();
  legends.forget();
  trouble("");
  say("");
  byId("same").textContent = "–";
  byId("with-name").textContent = "with pausing";
  showDial();
}

/**
 * Play another video, at the pace that the governor keeps.
 * @param {() => Promise<import("./video.js").Source>} source
 */
async function play(source) {
  const mine = ++opened;
  try {
    const next = await source();
    if (mine !== opened) return next.close();
    leave(null);
    dial.set({ mode: dial.modeNow() ?? "none", auto: true });
    film.open(next);
    say(`${next.name}, ${next.width} × ${next.height}, ${number(next.duration)} s.`);
  } catch (error) {
    if (mine === opened) refused(error, () => play(source));
  }
}

/** A frame was shown. @param {string} mode */
function ran(mode) {
  dial.show({ mode });
  byId("with-name").textContent = mode;
}

/** Save the mask or the overlay of what is shown. @param {"mask" | "overlay"} output */
async function save(output) {
  if (!picture || shown === null) return;
  const { bytes, name } = picture;
  try {
    const file = await service.png(bytes, shown, output);
    const link = make("a", { href: URL.createObjectURL(file), download: `${name.replace(/\.\w+$/, "")}_${output}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    refused(error, () => save(output));
  }
}

// Looking.

/** Name the classes under the pointer. @param {PointerEvent} event */
async function pointAt(event) {
  const found = await view.under(event);
  if (!found) return;
  const nameOf = /** @param {number} pixel */ (pixel) =>
    model.classes.find((one) => packed(one.colour) === pixel)?.name ?? "no class";
  const here = nameOf(found.here);
  const there = found.there === null ? here : nameOf(found.there);
  byId("under").textContent = here === there ? here : `${here}; without pausing ${there}`;
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
  byId("layers").addEventListener("change", (event) => {
    view.choose(/** @type {import("./view.js").Layer} */ (valueOf(event)));
    showAbout();
  });
  byId("compare").addEventListener("change", (event) => view.arrange(/** @type {"swipe" | "beside"} */ (valueOf(event))));
  byId("view").addEventListener("pointermove", pointAt);
  byId("view").addEventListener("pointerleave", () => (byId("under").textContent = ""));
  byId("try").addEventListener("click", () => again());
  for (const button of saves) {
    button.addEventListener("click", () => save(/** @type {"mask" | "overlay"} */ (button.dataset.output)));
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
  curve = new Curve(model, (point) => dial.turnTo(point));
  strip = new Strip(byId("strip"), model);
  film = new Film(model, view, () => dial.wish(), ran, trouble);
  listen();
  takeFiles(open, play);
  showDial();
  showAbout();
  follow();
  const scenes = await service.scenes().catch(() => []);
  offerScenes(scenes, open, play);
  if (scenes.length > 0 && !picture) open(() => service.scene(scenes[0].url), scenes[0].name);
}

start();
