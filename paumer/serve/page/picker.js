/**
 * Where pictures and videos come from: files that are chosen, dropped, pasted or photographed, and
 * the built-in scenes.
 *
 * @typedef {(source: () => Blob | Promise<Blob>, name: string) => void} Open
 * @typedef {(source: () => Promise<import("./video.js").Source>) => void} Play
 */

import { byId, inputOf, make } from "./dom.js";
import { scene } from "./service.js";
import { driveInto, videoOf } from "./video.js";

/**
 * Open whatever file the user gives.
 * @param {Open} open
 * @param {Play} play
 */
export function takeFiles(open, play) {
  /** @param {FileList | undefined | null} files */
  const openFirst = (files) => {
    const file = files && ([...files].find((one) => /^(image|video)\//.test(one.type)) ?? files[0]);
    if (file?.type.startsWith("video/")) play(() => videoOf(file));
    else if (file) open(() => file, file.name || "pasted image");
  };
  for (const id of ["file", "camera"]) {
    inputOf(id).addEventListener("change", () => {
      openFirst(inputOf(id).files);
      inputOf(id).value = ""; // so that the same file can be chosen again
    });
  }
  document.addEventListener("paste", (event) => openFirst(event.clipboardData?.files));
  for (const kind of /** @type {const} */ (["dragenter", "dragover", "dragleave", "drop"])) {
    document.addEventListener(kind, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      document.body.classList.toggle("dragging", kind === "dragover" || kind === "dragenter");
      if (kind === "drop") openFirst(event.dataTransfer.files);
    });
  }
}

/**
 * Offer the built-in scenes, and a drive into the last of them.
 * @param {{name: string, url: string, thumbnail: string}[]} scenes
 * @param {Open} open
 * @param {Play} play
 */
export function offerScenes(scenes, open, play) {
  /** @type {(name: string, thumbnail: string, choose: () => void) => HTMLElement} */
  const item = (name, src, choose) => {
    const image = make("img", { loading: "lazy", alt: "", src, width: 72, height: 54 });
    const button = make("button", { type: "button" }, image, make("span", { textContent: name }));
    button.addEventListener("click", choose);
    return make("li", {}, button);
  };
  const items = scenes.map(({ name, url, thumbnail }) => item(name, thumbnail, () => open(() => scene(url), name)));
  const last = scenes.at(-1);
  if (last) {
    const drive = async () => driveInto(await createImageBitmap(await scene(last.url)), `a drive into ${last.name}`);
    items.push(item("▶ drive", last.thumbnail, () => play(drive)));
  }
  byId("scenes").replaceChildren(...items);
}
