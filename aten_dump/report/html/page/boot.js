(() => {
  "use strict";
  // Trusted types: only what this policy made can become a script, and only with a hash that the page's policy names.
  const factory = window.trustedTypes ?? { createPolicy: (/** @type {string} */ _, /** @type {any} */ rules) => rules };
  const policy = factory.createPolicy("aten-dump", { createScript: (/** @type {string} */ text) => text });

  /** @param {string} name */
  async function load(name) {
    const text = document.querySelector(`script[data-script="${name}"]`)?.textContent ?? "";
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = /** @type {any} */ (policy.createScript(await new Response(stream).text()));
    document.head.append(script);
  }

  /** @type {Record<string, Promise<void>>} */
  const loaded = {};
  window.atenDumpScript = (/** @type {string} */ name) => (loaded[name] ??= load(name));
  window.atenDumpScript("app");
})();
