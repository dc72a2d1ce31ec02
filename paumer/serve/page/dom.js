/** What every part of the page needs: elements by their ids, and numbers as people read them. */

/** @param {string} id */
export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {string} id */
export const inputOf = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));

/** @param {string} id */
export const selectOf = (id) => /** @type {HTMLSelectElement} */ (document.getElementById(id));

/**
 * An HTML element with properties and content.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Partial<HTMLElementTagNameMap[T]>} [properties]
 * @param {(Node | string)[]} content
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, properties = {}, ...content) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...content);
  return element;
}

/**
 * An SVG element.
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {(Node | string)[]} content
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...content) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...content);
  return element;
}

/**
 * A number: two digits that matter below ten, whole numbers above.
 * @param {number} value
 */
export function number(value) {
  return value < 10 ? String(Math.round(10 * value) / 10) : Math.round(value).toLocaleString("en");
}

/**
 * A ratio in per cent; what is not quite nothing or all is not rounded to it.
 * @param {number} ratio
 */
export function percent(ratio) {
  const value = 100 * ratio;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  if (value > 99 && value < 100) return `${(Math.floor(10 * value) / 10).toFixed(1)} %`;
  return `${value.toFixed(value > 0 && value < 9.95 ? 1 : 0)} %`;
}

/** @param {number} ratio */
export const times = (ratio) => `${ratio.toFixed(2)}\u00a0×`;
