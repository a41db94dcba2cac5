/** Where sections come from: the file itself, or the server that shows the page. */

import { Section } from "./columns.js";

/**
 * @typedef {object} Source
 * @property {boolean} isServed whether the bytes of tensors can be asked for
 * @property {(name: string) => Promise<Section>} section
 * @property {(name: string) => Promise<Section | null>} optional null where there is none of that name
 */

/** @param {string} text base64 */
function decoded(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * @param {Uint8Array} bytes
 * @returns {Promise<Uint8Array>}
 */
async function inflated(bytes) {
  const stream = new Blob([/** @type {BlobPart} */ (bytes)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Sections that lie in the file, each in a script element of data. */
export class FileSource {
  constructor() {
    this.isServed = false;
    /** @type {Map<string, Element>} */
    this.elements = new Map();
    for (const element of document.querySelectorAll("script[data-section]")) {
      this.elements.set(element.getAttribute("data-section") ?? "", element);
    }
    /** @type {Map<string, Promise<Section>>} */
    this.sections = new Map();
  }

  /** @param {string} name */
  async section(name) {
    const found = await this.optional(name);
    if (!found) throw new Error(`the report does not hold ${name}`);
    return found;
  }

  /**
   * @param {string} name
   * @returns {Promise<Section | null>}
   */
  async optional(name) {
    const known = this.sections.get(name);
    if (known) return known;
    const element = this.elements.get(name);
    if (!element) return null;
    const found = inflated(decoded(element.textContent ?? "")).then((bytes) => new Section(bytes));
    this.sections.set(name, found);
    return found;
  }
}

/** Sections that may take the server seconds. A browser has six connections: these take one of them, in turn. */
const SLOW = /\/(uses|facts|nonfinite|saved)(\/|$)|^steps$/;

/** What the server says of a section that the dump has no right bytes for. */
export class ServerError extends Error {}

/** Sections that the server makes when they are asked for. */
export class ServerSource {
  constructor() {
    this.isServed = true;
    /** @type {Promise<unknown>} */
    this.turn = Promise.resolve();
  }

  /** @param {string} name */
  async section(name) {
    const found = await this.optional(name);
    if (!found) throw new ServerError(`the dump has no ${name} any more`);
    return found;
  }

  /** @param {string} name */
  optional(name) {
    const ask = () => this.fetched(`sections/${name}`);
    if (!SLOW.test(name)) return ask();
    const found = this.turn.then(ask);
    this.turn = found.catch(() => {});
    return found;
  }

  /**
   * Return the map or the elements of a slice of a tensor.
   * @param {Record<string, string>} query
   */
  async tensor(query) {
    const found = await this.fetched(`tensor?${new URLSearchParams(query)}`);
    if (!found) throw new ServerError("the dump has no such tensor");
    return found;
  }

  /** @param {string} path */
  async fetched(path) {
    const answer = await fetch(path).catch(() => { throw new ServerError("The server does not answer: has it been ended?"); });
    if (answer.status === 204) return null;
    if (!answer.ok || answer.headers.get("content-type")?.startsWith("text/")) throw new ServerError(await answer.text());
    return new Section(new Uint8Array(await answer.arrayBuffer()));
  }

  /** @returns {Promise<number>} goes up when the dump has grown; -1 while the server does not answer */
  async generation() {
    try {
      return (await (await fetch("generation")).json()).generation;
    } catch {
      return -1;
    }
  }
}
