/** Where sections come from: the file itself, or the server that shows the page. */

import { Section } from "./columns.js";

/**
 * @typedef {object} Source
 * @property {(name: string) => boolean} has
 * @property {(name: string) => Promise<Section>} section
 */

/**
 * @param {Uint8Array} bytes
 * @returns {Promise<Uint8Array>}
 */
async function inflated(bytes) {
  const stream = new Blob([/** @type {BlobPart} */ (bytes)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {string} text base64 */
function decoded(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Sections that lie in the file, each in a script element of data. */
export class FileSource {
  constructor() {
    /** @type {Map<string, Element>} */
    this.elements = new Map();
    for (const element of document.querySelectorAll("script[data-section]")) {
      this.elements.set(element.getAttribute("data-section") ?? "", element);
    }
    /** @type {Map<string, Promise<Section>>} */
    this.sections = new Map();
  }

  /** @param {string} name */
  has(name) {
    return this.elements.has(name);
  }

  /** @param {string} name */
  section(name) {
    const known = this.sections.get(name);
    if (known) return known;
    const element = this.elements.get(name);
    if (!element) return Promise.reject(new Error(`the report does not hold ${name}`));
    const found = inflated(decoded(element.textContent ?? "")).then((bytes) => new Section(bytes));
    this.sections.set(name, found);
    return found;
  }
}
