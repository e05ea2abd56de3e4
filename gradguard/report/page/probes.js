"use strict";
// What is looked at now and then: the optimizer's updates, activations, histograms of gradients.

function updatesFigure(view, ratios) {
  const { layers, guide } = view.run;
  const x = ratios.middles;
  const across = x.map((_, i) => {
    const values = layers.map((_, layer) => ratios.at(2, i, layer)).filter((value) => Number.isFinite(value) && value > 0).sort((a, b) => a - b);
    return values.length ? [0, 0.25, 0.5, 0.75, 1].map((share) => quantile(values, share)) : [null, null, null, null, null];
  });
  const level = (k) => across.map((five) => five[k]);
  const band = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  const isSparse = x.length < 40;
  const marks = isSparse ? { mode: "lines+markers" } : {};
  const own = ratios.row(2, view.layer).map((value) => (Number.isFinite(value) && value > 0 ? value : null));
  const data = [
    { ...band, y: level(0) }, { ...band, y: level(4), fill: "tonexty", fillcolor: color("sky", 0.15) },
    { ...band, y: level(1) }, { ...band, y: level(3), fill: "tonexty", fillcolor: color("sky", 0.3) },
    line(x, level(2), "median layer", color("blue"), { ...marks, marker: { size: 5, color: color("blue") } }),
    line(x, own, "chosen layer", color("orange"), { ...marks, line: { width: 2 }, marker: { size: 6, symbol: "square", color: color("orange") } }),
  ];
  return {
    data, height: 300,
    layout: {
      margin: { l: 62, r: 14, t: 8, b: 38 }, xaxis: axis({ title: { text: "step", standoff: 4 } }),
      yaxis: logAxis(ratioRange([...level(0), ...level(4), guide]), { title: { text: "update / weight" } }),
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: guide, y1: guide, line: { color: color("green"), width: 1.5, dash: "dash" } }],
      annotations: [{ xref: "paper", x: 0.005, y: Math.log10(guide), text: "10<sup>−3</sup> is usual", showarrow: false, xanchor: "left", yanchor: "bottom", font: { color: color("green"), size: 11 } }],
    },
  };
}

function ratioRange(values) {
  const logs = values.filter(isPositive).map(Math.log10);
  return [Math.min(...logs) - 0.3, Math.max(...logs) + 0.3];
}

function updatesChart(view) {
  const ratios = sketchOf(view.run.updates);
  if (!ratios) return el("p", { class: "empty" }, "The optimizer's updates were not looked at: no rule of the policy reads them.");
  const entry = (ink, text, kind = "solid") => el("span", {}, swatch(ink, kind), text);
  return el(
    "div", {}, controls(layerChoice(view)),
    el("div", { class: "legend" }, entry("orange", "the chosen layer"), entry("blue", "median of all layers"), entry("sky", "half of them, and all of them", "band")),
    chart(view, { label: "Norm of the update over norm of the weight, over the steps", follows: ["layer"], isTimed: true, build: () => updatesFigure(view, ratios) }),
  );
}

const SEEN = { dead: "dead units", saturated: "saturated entries" };

function activationFigure(view, sketches, name) {
  const { places, kinds } = view.run.activations;
  const sketch = sketches[name];
  const seen = places.map((_, i) => sketch.row(4, i).filter(Number.isFinite));
  const most = Math.max(...seen.map((values) => values.length));
  // Inputs that are no ReLU's are told at the first probe only.
  const rows = places.map((_, i) => i).filter((i) => seen[i].length > 1 || seen[i].some((value) => value > 0) || (most === 1 && seen[i].length));
  const names = rows.map((i) => `${places[i]} (${kinds[i]})`);
  const height = Math.min(Math.max(rows.length * 22, 90), 620);
  const z = rows.map((i) => sketch.row(4, i).map((value) => (Number.isFinite(value) ? value : null)));
  const hasRoom = sketch.width <= 14 && height / rows.length >= 16 && innerWidth > 640;
  return {
    height: height + 60,
    data: [{
      type: "heatmap", x: sketch.edges(), y: names.map(plain), z, zmin: 0, zmax: 1, colorscale: "Cividis", xgap: 1, ygap: 1,
      text: z.map((row) => row.map((value) => (value === null ? "" : `${Math.round(value * 100)}%`))), texttemplate: hasRoom ? "%{text}" : undefined,
      hovertemplate: "%{y}<br>step %{x:.0f}: %{text}<extra></extra>",
      colorbar: { thickness: 10, outlinewidth: 0, tickformat: ".0%", len: 0.95, x: 1.005, xpad: 4, tickvals: [0, 0.5, 1] },
    }],
    layout: { margin: { l: 40, r: 10, t: 8, b: 38 }, xaxis: axis({ title: { text: "step", standoff: 4 }, showgrid: false, zeroline: false }), yaxis: layerAxis(names, height) },
  };
}

function activationChart(view) {
  const told = view.run.activations;
  if (!told) return el("p", { class: "empty" }, "Activations were not looked at: no rule of the policy reads them, or the run ended before the first probe.");
  const seen = {};
  for (const name of Object.keys(SEEN)) {
    const sketch = sketchOf(told[name]);
    if (sketch && sketch.values.some(Number.isFinite)) seen[name] = sketch;
  }
  const names = Object.keys(seen);
  if (!names.length) return el("p", { class: "empty" }, "No activation that can die or saturate was seen.");
  let name = names[0];
  const figure = chart(view, { label: "Share of dead units or saturated entries of every activation over the steps", isTimed: true, build: () => activationFigure(view, seen, name) });
  const what = names.length < 2 ? el("span", { class: "facts-line" }, SEEN[name]) : choice("Share of", names.map((key) => [key, SEEN[key]]), name, (value) => { name = value; figure.querySelector(".chart").redraw(); });
  return el("div", {}, controls(what), figure);
}

// The bins of a layer at all probes on one grid: a place k from the middle holds entries from 2^(2(k + base) - 129) on.
const SIDE = 12;
function histogramRows(view, told) {
  const num = view.run.layers.length;
  const bins = 2 * SIDE + 1;
  const top = told.step.map((_, k) => told.tops[k * num + view.layer]);
  const known = top.filter((value) => value > 0);
  const base = known.length ? Math.min(...known) - SIDE : 0;
  const reach = known.length ? Math.max(...known) - base : SIDE;
  const rows = told.step.map((_, k) => {
    const row = new Array(2 * reach + 1).fill(0);
    const start = (k * num + view.layer) * bins;
    for (let bin = 0; bin < bins; bin++) {
      const level = told.bytes[start + bin];
      const share = level ? 2 ** ((level - 255) / 8) : 0;
      const side = bin - SIDE;
      row[reach + (side === 0 ? 0 : Math.sign(side) * (Math.abs(side) + top[k] - SIDE - base))] += share;
    }
    return row;
  });
  const places = Array.from({ length: 2 * reach + 1 }, (_, i) => i - reach);
  const size = (k) => 2 ** (2 * (Math.abs(k) + base) - 127);
  return { rows, places, size };
}

function sizeTicks(places, size, room) {
  const each = Math.max(1, Math.ceil(places.length / room));
  const kept = places.filter((k) => k % each === 0);
  return { tickvals: kept, ticktext: kept.map((k) => (k === 0 ? "0" : `${k < 0 ? "−" : ""}${size(k).toExponential(0).replace("e+", "e")}`)) };
}

function histogramFigure(view, told, probe) {
  const { rows, places, size } = histogramRows(view, told);
  const isNarrow = innerWidth < 640 || DATA.runs.length > 1;
  const room = innerWidth < 640 ? 5 : 9;
  const range = (k) => (k === 0 ? "around 0" : `${k < 0 ? "−" : ""}${number(size(k), 3)} and ${number(size(Math.abs(k) + 1), 3)} in size`);
  const percent = (row) => row.map((share) => share * 100);
  const data = [
    { type: "bar", x: places, y: percent(rows[probe]), marker: { color: color("blue", 0.75) }, text: places.map(range), textposition: "none", hovertemplate: "%{text}: %{y:.2~f} %<extra></extra>" },
    { x: places, y: percent(rows[0]), mode: "lines", line: { shape: "hvh", color: color("orange"), width: 1.6 }, hoverinfo: "skip" },
    {
      type: "heatmap", xaxis: "x2", yaxis: "y2", x: told.step.map(String), y: places, z: places.map((_, i) => rows.map((row) => (row[i] > 0 ? Math.log10(row[i] * 100) : null))), zmin: -2, zmax: 2,
      colorscale: "Cividis", showscale: false, customdata: places.map((k, i) => rows.map((row) => `${number(row[i] * 100, 3)} % ${plain(range(k))}`)), hovertemplate: "step %{x}: %{customdata}<extra></extra>",
    },
  ];
  const split = isNarrow ? { x: [0, 1], y: [0.57, 1], x2: [0, 1], y2: [0, 0.4] } : { x: [0, 0.47], y: [0, 1], x2: [0.56, 1], y2: [0, 1] };
  return {
    data, height: isNarrow ? 560 : 340,
    layout: {
      margin: { l: 52, r: 12, t: 8, b: 46 }, bargap: 0.05,
      xaxis: axis({ domain: split.x, anchor: "y", title: { text: "size of an entry", standoff: 4 }, ...sizeTicks(places, size, room), tickangle: 0, zeroline: false, fixedrange: true }),
      yaxis: axis({ domain: split.y, anchor: "x", title: { text: "% of entries" }, fixedrange: true }),
      xaxis2: axis({ domain: split.x2, anchor: "y2", type: "category", title: { text: "step of the probe", standoff: 4 }, nticks: 7, tickangle: 0, showgrid: false, fixedrange: true }),
      yaxis2: axis({ domain: split.y2, anchor: "x2", ...sizeTicks(places, size, 9), showgrid: false, zeroline: false, fixedrange: true }),
      shapes: [{ type: "rect", xref: "x2", yref: "y2 domain", x0: probe - 0.5, x1: probe + 0.5, y0: 0, y1: 1, line: { color: color("orange"), width: 2 } }],
    },
  };
}

function histogramChart(view) {
  const told = view.run.histograms;
  if (!told) return el("p", { class: "empty" }, "Gradients were not probed (monitor: statistics), or the run ended before the first probe.");
  const opened = { step: told.step, bytes: bytes(told.levels), tops: bytes(told.top) };
  let probe = told.step.length - 1;
  const figure = chart(view, {
    label: "Histogram of one layer's gradient at a probe, and at all probes", follows: ["layer"], build: () => histogramFigure(view, opened, probe),
    onClick: ([point]) => point.data.type === "heatmap" && choose(point.pointNumber[1]),
  });
  const output = el("output", {}, `step ${number(told.step[probe])}`);
  const slider = el("input", { type: "range", min: 0, max: told.step.length - 1, value: probe, "aria-label": "Probe", oninput: () => choose(Number(slider.value)) });
  function choose(place) {
    probe = place;
    slider.value = place;
    output.textContent = `step ${number(told.step[place])}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    figure.querySelector(".chart").redraw();
  }
  return el(
    "div", {}, controls(layerChoice(view), el("label", {}, el("span", {}, "Probe at ", output), slider)),
    el("div", { class: "legend" }, el("span", {}, swatch("blue", "band"), "this probe"), el("span", {}, swatch("orange", "solid"), `the first probe (step ${number(told.step[0])})`)), figure,
  );
}
