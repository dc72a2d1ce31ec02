/**
 * The endpoints of the service from its own description, each with a form to try it.
 *
 * @typedef {{name: string, in: string, required?: boolean, description?: string,
 *   schema: {default?: string, enum?: string[], examples?: string[]},
 *   examples?: Record<string, {summary?: string, value: string}>}} Parameter
 * @typedef {{description?: string, parameters?: Parameter[], requestBody?: {description: string},
 *   responses: Record<string, {description: string}>}} Operation
 */

import { byId, make } from "./dom.js";

/** Characters of an answer that are shown. */
const SHOWN = 3000;

let ids = 0;
const newId = () => `field-${++ids}`;

/** The examples of a parameter, with what they mean. @param {Parameter} parameter */
const examplesOf = ({ examples, schema }) =>
  examples ? Object.values(examples) : (schema.examples ?? []).map((value) => ({ value, summary: "" }));

/**
 * @param {string} path
 * @param {string} method
 * @param {Operation} operation
 */
function endpoint(path, method, operation) {
  const name = `${method.toUpperCase()} ${path}`;
  const form = make("form", { className: "try" });
  const fields = (operation.parameters ?? []).map(field);
  const file = make("input", { type: "file", accept: "image/*", id: newId() });
  const result = make("div", { className: "answer" });
  result.setAttribute("aria-live", "polite");
  form.append(...fields.flat());
  if (operation.requestBody) {
    const about = make("p", { className: "quiet fine", textContent: `${operation.requestBody.description}. None chosen: a built-in scene is sent.` });
    form.append(make("label", { htmlFor: file.id, textContent: "body" }), make("div", {}, file, about));
  }
  form.append(make("button", { className: "button", textContent: "Send" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(path, method, form, operation.requestBody ? file : null, result);
  });
  const statuses = Object.entries(operation.responses).filter(([status]) => operation.requestBody && status !== "200");
  const errors = statuses.map(([status, { description }]) => make("li", {}, make("code", { textContent: status }), ` ${description}`));
  return make("section", { className: "endpoint" },
    make("h2", {}, make("code", { textContent: name })),
    make("p", { textContent: operation.description ?? "" }),
    form,
    result,
    ...(errors.length ? [make("details", {}, make("summary", { textContent: "What it answers where it cannot" }), make("ul", {}, ...errors))] : []));
}

/**
 * The label of a parameter, and a control with what it means and examples.
 * @param {Parameter} parameter
 */
function field(parameter) {
  const { name, schema, description = "" } = parameter;
  const id = newId();
  const examples = examplesOf(parameter);
  const start = schema.default ?? (parameter.in === "path" ? examples[0]?.value : "") ?? "";
  const control = schema.enum
    ? make("select", { id, name }, ...schema.enum.map((value) => make("option", { value, textContent: value })))
    : make("input", { id, name, autocomplete: "off", spellcheck: false });
  control.value = start;
  control.dataset.in = parameter.in;
  const about = [description, schema.default && `Default: ${schema.default}.`].filter(Boolean).join(" ");
  const choices = examples.map(({ value, summary }) => {
    const button = make("button", { type: "button", className: "link" }, make("code", { textContent: value }));
    button.addEventListener("click", () => (control.value = value));
    return make("li", {}, button, summary ? ` ${summary}` : "");
  });
  return [
    make("label", { htmlFor: id, textContent: name }),
    make("div", {}, control, make("p", { className: "quiet fine", textContent: about }), make("ul", { className: "quiet fine" }, ...choices)),
  ];
}

/**
 * @param {string} path
 * @param {string} method
 * @param {HTMLFormElement} form
 * @param {HTMLInputElement | null} file
 * @param {HTMLElement} result
 */
async function send(path, method, form, file, result) {
  const query = new URLSearchParams();
  let address = path.slice(1);
  for (const control of /** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("[data-in]"))) {
    if (control.dataset.in === "path") address = address.replace(`{${control.name}}`, encodeURIComponent(control.value));
    else if (control.value) query.set(control.name, control.value);
  }
  if (query.size) address += `?${query}`;
  const url = new URL(address, document.baseURI).href;
  const curl = file ? `curl --data-binary @${file.files?.[0]?.name ?? "scene.png"} '${url}' -o answer` : `curl '${url}'`;
  result.replaceChildren(make("pre", { textContent: curl }));
  try {
    const body = file ? file.files?.[0] ?? (await (await fetch("v1/scenes/1.png")).blob()) : undefined;
    const response = await fetch(address, { method: method.toUpperCase(), body });
    const headers = ["content-type", "x-paumer-mode", "x-paumer-point", "server-timing", "retry-after"]
      .filter((name) => response.headers.get(name))
      .map((name) => `${name}: ${response.headers.get(name)}`);
    result.append(make("pre", { textContent: [`${response.status} ${response.statusText}`.trim(), ...headers].join("\n") }), await shown(response));
  } catch (error) {
    result.append(make("p", { className: "trouble", textContent: `No answer: ${/** @type {Error} */ (error).message}.` }));
  }
}

/** The body of an answer: an image, text, or how many bytes it is. @param {Response} response */
async function shown(response) {
  const kind = response.headers.get("content-type") ?? "";
  const body = await response.blob();
  if (kind.startsWith("image/")) return make("img", { src: URL.createObjectURL(body), alt: "The image that came back" });
  if (!/json|text/.test(kind)) return make("p", { textContent: `${body.size.toLocaleString("en")} bytes` });
  const text = await body.text();
  const indented = kind.includes("json") && text.length < SHOWN ? JSON.stringify(JSON.parse(text), null, 2) : text;
  const more = indented.length - SHOWN;
  return make("pre", { textContent: more > 0 ? `${indented.slice(0, SHOWN)}\n… ${more.toLocaleString("en")} characters more` : indented });
}

async function start() {
  const { info, paths } = await (await fetch("openapi.json")).json();
  byId("title").textContent = `HTTP API, version ${info.version}. ${info.description}`;
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(methods)) byId("endpoints").append(endpoint(path, method, operation));
  }
}

start();
