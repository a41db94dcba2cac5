/** Light and dark: as the system has it, or as chosen. */

const NAMES = ["auto", "light", "dark"];

export function themeName() {
  return document.documentElement.getAttribute("data-theme") ?? "auto";
}

export function nextTheme() {
  const name = NAMES[(NAMES.indexOf(themeName()) + 1) % NAMES.length];
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", name);
  window.dispatchEvent(new Event("themechange"));
}

/**
 * Return a colour of the theme, for canvases.
 * @param {string} name of the variable, without dashes
 */
export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** @param {() => void} listener called when colours change */
export function onThemeChange(listener) {
  window.addEventListener("themechange", listener);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", listener);
}
