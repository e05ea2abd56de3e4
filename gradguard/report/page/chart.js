"use strict";
// One chart: drawn when it comes near the screen, again when the theme or what it depends on changes.

const isTouch = matchMedia("(pointer: coarse)").matches;
const CONFIG = {
  displaylogo: false,
  responsive: true,
  scrollZoom: false,
  displayModeBar: isTouch ? false : "hover",
  modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};
const nearScreen = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => entry.target.draw()),
  { rootMargin: "500px" },
);
addEventListener("beforeprint", () => document.querySelectorAll(".chart").forEach((host) => host.draw()));

function axis(extra = {}) {
  return {
    gridcolor: color("grid"),
    linecolor: color("line"),
    zerolinecolor: color("grid"),
    tickcolor: color("line"),
    ticks: "outside",
    ticklen: 4,
    automargin: "left",
    ...extra,
  };
}

// A logarithmic axis with a label a decade, and more of them where it spans few.
function logAxis(range, extra = {}) {
  const decades = range ? range[1] - range[0] : 3;
  return axis({
    type: "log",
    exponentformat: "power",
    dtick: decades > 10 ? Math.ceil(decades / 7) : decades > 1.2 ? 1 : "D2",
    ...(range ? { range } : {}),
    ...extra,
  });
}

function layoutOf(layout) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    dragmode: isTouch ? false : "zoom",
    margin: { l: 56, r: 14, t: 10, b: 44 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("text") },
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("text") }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("soft"), activecolor: color("accent") },
    ...layout,
  };
}

// A chart in a figure, `height()` pixels high. `build` returns {data, layout}; `follows` names what of the view it is
// redrawn for.
// With `isTimed` its x axis is the step: it shows the view's span, and zooming it chooses the span. With `isFirst` a
// glimpse of it is shown until the library is there.
function chart(
  view,
  { label, caption, height, build, follows = [], isTimed = false, isFirst = false, onClick = null },
) {
  const host = el("div", { class: "chart", role: "img", "aria-label": label });
  const fit = () => (host.style.height = `${height()}px`);
  fit();
  let isDrawn = false;
  const figure = () => {
    const { data, layout } = build();
    fit();
    if (isTimed) layout.xaxis = { ...layout.xaxis, range: padded(view.shownSpan), autorange: false };
    return { data, layout, height: height() };
  };
  const given = ({ data, layout, height }) => [host, data, layoutOf({ ...layout, height }), CONFIG];
  host.glimpse = () => isFirst && glimpse(host, figure());
  const redraw = () => (isDrawn ? Plotly.react(...given(figure())) : host.glimpse());
  host.redraw = redraw;
  host.draw = () => {
    if (isDrawn || !globalThis.Plotly) return;
    isDrawn = true;
    nearScreen.unobserve(host);
    host.replaceChildren();
    Plotly.newPlot(...given(figure()));
    if (onClick) host.on("plotly_click", (event) => onClick(event.points));
    if (isTimed) host.on("plotly_relayout", (change) => chosen(view, change));
  };
  follows.forEach((what) => view.on(what, redraw));
  if (isTimed && !follows.includes("span"))
    view.on("span", () => isDrawn && Plotly.relayout(host, { "xaxis.range": padded(view.shownSpan) }));
  themeListeners.push(redraw);
  return el("figure", {}, host, caption ? el("figcaption", {}, caption) : null);
}

function padded([from, to]) {
  const margin = Math.max(0.5, (to - from) * 0.01);
  return [from - margin, to + margin];
}

function chosen(view, change) {
  if (change["xaxis.autorange"]) return view.set("span", null);
  const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  if (range[0] === undefined) return;
  const [from, to] = [Math.ceil(range[0]), Math.floor(range[1])];
  const [first, last] = view.whole;
  const isWhole = from <= first && to >= last;
  if (isWhole || to < from) return view.set("span", null);
  const padding = padded(view.shownSpan);
  if (Math.abs(padding[0] - range[0]) + Math.abs(padding[1] - range[1]) < 1e-6) return;
  view.set("span", [Math.max(from, first), Math.min(to, last)]);
}

// Width of the longest of some labels beside an axis. A margin that has room for them from the start saves the library
// from drawing everything twice: to find that there is none, and again.
const ruler = document.createElement("canvas").getContext("2d");
function labelWidth(labels, size = 12) {
  ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return Math.ceil(Math.max(0, ...labels.map((label) => ruler.measureText(label).width))) + 12;
}

// Layers that are named beside an axis: as many as there is room for, and no longer than there is.
const LAYER_LABEL = 10.5;
function labelledLayers(names, height) {
  const each = Math.max(1, Math.ceil((names.length * 12) / height));
  const kept = names.filter((_, i) => i % each === 0);
  return { kept, labels: kept.map((name) => shortened(name, innerWidth < 640 ? 16 : 34)) };
}

function layerMargin(names, height, extra) {
  return { l: labelWidth(labelledLayers(names, height).labels, LAYER_LABEL), r: 14, t: 10, b: 44, ...extra };
}

function layerAxis(names, height, extra = {}) {
  const { kept, labels } = labelledLayers(names, height);
  return axis({
    type: "category",
    categoryorder: "array",
    categoryarray: names.map(plain),
    tickvals: kept.map(plain),
    ticktext: labels.map(plain),
    range: [names.length - 0.5, -0.5],
    fixedrange: true,
    automargin: false,
    ticks: "",
    showgrid: false,
    zeroline: false,
    tickfont: { size: LAYER_LABEL },
    ...extra,
  });
}

// A name without its middle, a sentence without its end.
function shortened(text, room) {
  if (text.length <= room) return text;
  if (text.includes(" ")) {
    const cut = text.slice(0, room - 1);
    const end = cut.lastIndexOf(" ");
    return `${(end > room / 2 ? cut.slice(0, end) : cut).trimEnd().replace(/[,;:]$/, "")} …`;
  }
  const head = Math.ceil((room - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (room - 1 - head))}`;
}

const layerHeight = (layers) => Math.min(Math.max(layers * 15, 150), 660);
const BELOW = 54; // pixels above and below a chart's own area, for the axis and its title

function controls(...items) {
  const known = items.flat().filter(Boolean);
  return known.length ? el("div", { class: "controls" }, known) : null;
}

function choice(label, options, value, onChange) {
  const select = el(
    "select",
    { onchange: () => onChange(select.value) },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
  );
  return el("label", {}, label, select);
}

function layerChoice(view) {
  const names = view.run.layers.map((name, i) => [String(i), name]);
  const label = choice("Layer", names, String(view.layer), (value) => view.set("layer", Number(value)));
  view.on("layer", () => (label.querySelector("select").value = String(view.layer)));
  return label;
}
