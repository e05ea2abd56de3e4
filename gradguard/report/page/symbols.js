"use strict";
// The shapes of marks and lines, drawn alike in a legend, in a first picture, and by the library that draws the charts.

// Corners around the middle, in half sizes. The library has the same shapes under the same names.
const CORNERS = (() => {
  const [side, near, far] = [2 / Math.sqrt(3), 0.383, 0.924];
  const arm = 0.8 / Math.SQRT2;
  const quarter = [
    [0, -arm],
    [arm, -2 * arm],
    [2 * arm, -arm],
  ];
  const turned = ([x, y], times) => (times ? turned([-y, x], times - 1) : [x, y]);
  return {
    square: [0, 1, 2, 3].map((times) => turned([1, 1], times)),
    diamond: [0, 1, 2, 3].map((times) => turned([1.3, 0], times)),
    octagon: [0, 1, 2, 3].flatMap((times) => [turned([near, -far], times), turned([far, -near], times)]),
    x: [0, 1, 2, 3].flatMap((times) => quarter.map((corner) => turned(corner, times))),
    "triangle-up": [
      [-side, 0.5],
      [side, 0.5],
      [0, -1],
    ],
    "triangle-down": [
      [-side, -0.5],
      [side, -0.5],
      [0, 1],
    ],
  };
})();
const isOpenSymbol = (symbol) => symbol.endsWith("-open");

// The outline of a symbol of some size as an SVG path around (0, 0), which a canvas takes as well.
function symbolPath(symbol, size) {
  const half = size / 2;
  const corners = CORNERS[symbol.replace("-open", "")];
  if (!corners) return `M${half},0A${half},${half} 0 1 1 ${-half},0A${half},${half} 0 1 1 ${half},0Z`;
  return `M${corners.map((corner) => corner.map((at) => (at * half).toFixed(2)).join(",")).join("L")}Z`;
}

function drawing(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function symbolNode(symbol, ink, size, x = 0) {
  const path = drawing("path", { d: symbolPath(symbol, size), transform: `translate(${x},0)` });
  path.style.cssText = isOpenSymbol(symbol)
    ? `fill:none;stroke:var(--${ink});stroke-width:1.5`
    : `fill:var(--${ink});stroke:none`;
  return path;
}

// A mark as it stands on a chart, to stand beside its word.
function symbolSign(symbol, ink) {
  return drawing("svg", { class: "sign", viewBox: "-8 -8 16 16", "aria-hidden": "true" }, symbolNode(symbol, ink, 10));
}

// A line as it is drawn on a chart: dashed or not, with a symbol on it, or in the middle of a band.
const DASHES = { dash: "6 4", dot: "2 3" };
function swatch(ink, { dash, symbol, width = 2, band = 0 } = {}) {
  const node = drawing("svg", { class: "swatch", viewBox: "0 -7 26 14", "aria-hidden": "true" });
  if (band) {
    const area = drawing("rect", { x: 0, y: -6, width: 26, height: 12 });
    area.style.cssText = `fill:var(--${ink});fill-opacity:${band}`;
    node.append(area);
  }
  if (width) {
    const stroke = drawing("path", { d: "M0,0H26", "stroke-dasharray": DASHES[dash] ?? "none" });
    stroke.style.cssText = `stroke:var(--${ink});stroke-width:${width}`;
    node.append(stroke);
  }
  if (symbol) node.append(symbolNode(symbol, ink, 8, 13));
  return node;
}

// Signs with their words; what is missing is left out.
function legend(...entries) {
  const known = entries.flat().filter(Boolean);
  return known.length
    ? el(
        "div",
        { class: "legend" },
        known.map((entry) => el("span", {}, entry)),
      )
    : null;
}
