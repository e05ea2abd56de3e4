"use strict";
// Light, dark, or as the system has it; charts are told when it changes.

const THEMES = ["auto", "light", "dark"];
const themeListeners = [];
let theme = "auto";

// A colour of the style sheet, as it is in the present theme.
const colorProbe = document.createElement("i");
colorProbe.hidden = true;
document.body.append(colorProbe);
function color(name, alpha = 1) {
  colorProbe.style.color = `var(--${name})`;
  const [red, green, blue] = getComputedStyle(colorProbe)
    .color.match(/[\d.]+/g)
    .map(Number);
  return `rgba(${red},${green},${blue},${alpha})`;
}

function setTheme(wanted) {
  theme = wanted;
  if (wanted === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = wanted;
  const button = document.getElementById("theme");
  button.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[wanted];
  button.setAttribute("aria-label", `Theme: ${wanted}. Change it`);
  for (const listener of themeListeners) listener();
}

document.getElementById("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(theme));
setTheme("auto");
