"use strict";
// The data of the page, and what every part of it needs: elements, numbers, packed arrays, what a reader has chosen.

const DATA = JSON.parse(document.getElementById("told").textContent);

// The numbers of a run stand further down in the page, a piece each: a piece is read when something asks for it.
const PIECES = ["curves", "actions", "norms", "probed", "updates", "activations", "histograms", "evidence"];
function remembered(owner, name, compute) {
  Object.defineProperty(owner, name, {
    configurable: true,
    get() {
      const value = compute();
      Object.defineProperty(owner, name, { value });
      return value;
    },
  });
}
DATA.runs.forEach((run, place) =>
  PIECES.forEach((name) =>
    remembered(run, name, () => JSON.parse(document.getElementById(`run${place}-${name}`).textContent)),
  ),
);

// Text is only ever set as text: no part of the page takes HTML from the data.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// Plotly reads a little HTML in its texts: a name must not be taken for any.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function unescaped(text) {
  return text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

// A name as nodes that may break across lines behind its dots and underscores.
function breakable(name) {
  return String(name)
    .split(/(?<=[._/])/)
    .flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part]));
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "Inf" : "-Inf";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value
      .toExponential(digits - 2)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  }
  return String(Number(value.toPrecision(digits)));
}

const count = (value, noun, nouns = noun + "s") => `${value.toLocaleString("en")} ${value === 1 ? noun : nouns}`;
const spanOfSteps = (first, last) =>
  first === last ? `step ${number(first)}` : `steps ${number(first)}–${number(last)}`;

function duration(seconds) {
  if (seconds === null || !(seconds >= 0)) return "unknown time";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function bytes(text) {
  const chars = atob(text);
  const values = new Uint8Array(chars.length);
  for (let i = 0; i < values.length; i++) values[i] = chars.charCodeAt(i);
  return values;
}

// The upper halves of little-endian float32, see sketch.py.
function floats(text) {
  const halves = bytes(text);
  const words = new Uint32Array(halves.length / 2);
  for (let i = 0; i < words.length; i++) words[i] = ((halves[2 * i + 1] << 8) | halves[2 * i]) << 16;
  return new Float32Array(words.buffer);
}

// Five numbers (or one) of every series in every stretch of steps.
class Sketch {
  constructor({ first, last, shape, data }) {
    [this.first, this.last] = [first, last];
    [this.depth, this.width, this.series] = shape;
    remembered(this, "values", () => floats(data));
  }
  at(quantile, stretch, series) {
    const level = this.depth === 1 ? 0 : quantile;
    return this.values[(level * this.width + stretch) * this.series + series];
  }
  row(quantile, series) {
    return Array.from({ length: this.width }, (_, stretch) => this.at(quantile, stretch, series));
  }
  get middles() {
    return this.first.map((step, i) => (step + this.last[i]) / 2);
  }
  edges() {
    const { first, last, width } = this;
    const cut = Array.from({ length: width - 1 }, (_, i) => (last[i] + first[i + 1]) / 2);
    const ends = width > 1 ? [first[1] - last[0], first[width - 1] - last[width - 2]] : [1, 1];
    return [first[0] - ends[0] / 2, ...cut, last[width - 1] + ends[1] / 2];
  }
  stretches([from, to]) {
    return this.first.map((_, i) => i).filter((i) => this.last[i] >= from && this.first[i] <= to);
  }
  // Values of one series over some stretches, as a sample: where quartiles are known, evenly drawn between them.
  sample(series, stretches) {
    const sample = [];
    for (const stretch of stretches) {
      if (this.depth === 1) sample.push(this.at(0, stretch, series));
      else {
        for (let k = 0; k < 8; k++) {
          const [quarter, share] = [k >> 1, k % 2 ? 0.75 : 0.25];
          sample.push(this.at(quarter, stretch, series) * (1 - share) + this.at(quarter + 1, stretch, series) * share);
        }
      }
    }
    return Float64Array.from(sample.filter(Number.isFinite)).sort();
  }
}

// The same sketch for every chart that takes its numbers from it: they are many.
const sketches = new Map();
function sketchOf(told) {
  if (!told || !told.shape[1] || !told.shape[2]) return null;
  if (!sketches.has(told)) sketches.set(told, new Sketch(told));
  return sketches.get(told);
}

// What a reader has chosen for one run: a span of steps (null: all), a layer, an intervention.
class View {
  constructor(run, index) {
    Object.assign(this, { run, index, span: null, layer: 0, listeners: { span: [], layer: [] } });
    remembered(this, "whole", () => {
      const steps = run.curves.step;
      return steps.length ? [steps[0], steps[steps.length - 1]] : [0, 0];
    });
  }
  // Places of the rows to draw: all in view, or of each pixel's width the highest and lowest of every curve.
  get drawnRows() {
    const key = JSON.stringify(this.shownSpan);
    if (this.drawn?.key !== key) this.drawn = { key, rows: rowsInView(this.run.curves, this.shownSpan) };
    return this.drawn.rows;
  }
  get isThinned() {
    return this.run.curves.step.length > MOST_POINTS;
  }
  get shownSpan() {
    return this.span ?? this.whole;
  }
  on(what, listener) {
    this.listeners[what].push(listener);
  }
  set(what, value) {
    if (JSON.stringify(this[what]) === JSON.stringify(value)) return;
    this[what] = value;
    for (const listener of this.listeners[what]) listener();
  }
}

const MOST_POINTS = 5000;
const PIXELS = 900;
function rowsInView({ step, loss, norm, effective }, [from, to]) {
  const margin = (to - from) * 0.02;
  const rows = [];
  for (let i = 0; i < step.length; i++) if (step[i] >= from - margin && step[i] <= to + margin) rows.push(i);
  if (rows.length <= MOST_POINTS) return rows;
  const kept = new Set([rows[0], rows[rows.length - 1]]);
  for (const column of [loss, norm, effective]) {
    let [pixel, low, high] = [-1, -1, -1];
    for (const i of rows) {
      if (column[i] === null) continue;
      const place = Math.floor(((step[i] - from) / (to - from)) * PIXELS);
      if (place !== pixel) {
        if (low >= 0) kept.add(low).add(high);
        [pixel, low, high] = [place, i, i];
      } else if (column[i] < column[low]) low = i;
      else if (column[i] > column[high]) high = i;
    }
    if (low >= 0) kept.add(low).add(high);
  }
  return [...kept].sort((a, b) => a - b);
}

function announce(text) {
  document.getElementById("announce").textContent = text;
}
