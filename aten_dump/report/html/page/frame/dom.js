/** Elements made of text nodes only: no string of a dump ever becomes markup. */

/** @typedef {string | number | Node | null | undefined | false} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element.
 * @param {string} tag
 * @param {Record<string, any>} [properties] attributes; `on…` are listeners; false and null leave one out
 * @param {...(Child | Child[])} children strings become text nodes
 * @returns {HTMLElement}
 */
export function h(tag, properties = {}, ...children) {
  return /** @type {HTMLElement} */ (filled(document.createElement(tag), properties, children));
}

/**
 * Make an element of SVG.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function svg(tag, properties = {}, ...children) {
  return /** @type {SVGElement} */ (filled(document.createElementNS(SVG, tag), properties, children));
}

/**
 * @param {Element} element
 * @param {Record<string, any>} properties
 * @param {(Child | Child[])[]} children
 */
function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/**
 * @param {Element} element
 * @param {(Child | Child[])[]} children
 */
function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Put other children into an element.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}
