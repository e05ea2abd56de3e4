"use strict";
// Every layer over time, every layer over the chosen span, one layer in full.

const PARTS = [["4", "largest"], ["2", "median"], ["0", "smallest"]];

// The same colours for all runs, so that what stands side by side can be compared.
const heatRange = (() => {
  const known = {};
  return (part) => {
    if (!known[part]) {
      const logs = [];
      for (const run of DATA.runs) {
        const norms = sketchOf(run.norms);
        for (let layer = 0; norms && layer < norms.series; layer++) {
          for (const value of norms.row(part, layer)) if (value > 0 && value < Infinity) logs.push(Math.log10(value));
        }
      }
      const sorted = Float64Array.from(logs).sort();
      const low = sorted.length ? sorted[Math.floor(sorted.length * 0.005)] : 0;
      known[part] = [low, sorted.length ? Math.max(sorted[sorted.length - 1], low + 0.5) : 1];
    }
    return known[part];
  };
})();

function heatFigure(view, norms, part) {
  const { layers } = view.run;
  const values = layers.map((_, layer) => norms.row(part, layer));
  const z = values.map((row) => row.map((value) => (value > 0 && value < Infinity ? Math.log10(value) : value === 0 ? -99 : null)));
  const [zmin, zmax] = heatRange(part);
  const height = layerHeight(layers.length);
  const map = { type: "heatmap", x: norms.edges(), y: layers.map(plain) };
  const data = [{
    ...map, z, zmin, zmax, colorscale: "Cividis", customdata: values, hovertemplate: "%{y}<br>step %{x:.0f}: norm %{customdata:.3~g}<extra></extra>",
    colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, tickprefix: "10<sup>", ticksuffix: "</sup>", tickfont: { size: 11 }, dtick: zmax - zmin > 1.6 ? Math.ceil((zmax - zmin) / 7) : 0.5, x: 1.005, xpad: 4 },
  }];
  if (values.some((row) => row.includes(Infinity))) {
    const odd = values.map((row) => row.map((value) => (value === Infinity ? 1 : null)));
    data.push({ ...map, z: odd, zmin: 0, zmax: 1, showscale: false, colorscale: [[0, color("red")], [1, color("red")]], hovertemplate: "%{y}<br>step %{x:.0f}: not finite<extra></extra>" });
  }
  return {
    data, height: height + 60,
    layout: { margin: { l: 40, r: 10, t: 8, b: 38 }, xaxis: axis({ title: { text: "step", standoff: 4 }, showgrid: false, zeroline: false }), yaxis: layerAxis(layers, height) },
  };
}

function heatChart(view) {
  const norms = sketchOf(view.run.norms);
  if (!norms) return el("p", { class: "empty" }, "No gradient norm of a layer was recorded.");
  let part = 4;
  const figure = chart(view, {
    label: "Heat map of the gradient norm of every layer over the steps, first layers on top", isTimed: true,
    build: () => heatFigure(view, norms, part),
    onClick: ([point]) => view.set("layer", point.pointNumber[0]),
  });
  const redraw = () => figure.querySelector(".chart").redraw();
  const stretch = norms.depth === 1 ? null : choice("Of each stretch of steps the", PARTS, "4", (value) => { part = Number(value); redraw(); });
  return el("div", {}, controls(stretch), figure);
}

const STATISTICS = { norm: "gradient norm", mean: "mean", std: "standard deviation", max: "largest entry", zero_ratio: "share of zeros" };

function sketchesOf(run) {
  const found = { norm: sketchOf(run.norms) };
  for (const name of Object.keys(run.probed)) found[name] = sketchOf(run.probed[name]);
  return Object.fromEntries(Object.entries(found).filter(([, sketch]) => sketch));
}

const quantile = (sorted, share) => {
  const place = (sorted.length - 1) * share;
  const [low, high] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return low + (high - low) * (place - Math.floor(place));
};

const linearAxis = (range, extra) => axis({ ...extra, nticks: 7, exponentformat: "e" });

function boxRange({ lowerfence, upperfence }, isLog) {
  if (!isLog || !lowerfence.length) return undefined;
  const [low, high] = [Math.log10(Math.min(...lowerfence)), Math.log10(Math.max(...upperfence))];
  const margin = Math.max(0.1, (high - low) * 0.04);
  return [low - margin, high + margin];
}

function boxFigure(view, sketches, name) {
  const { layers } = view.run;
  const sketch = sketches[name];
  const stretches = sketch.stretches(view.shownSpan);
  const isLog = ["norm", "std", "max"].includes(name);
  const box = { y: [], q1: [], median: [], q3: [], lowerfence: [], upperfence: [] };
  for (let layer = 0; layer < layers.length; layer++) {
    let sample = sketch.sample(layer, stretches);
    const ends = [0, 4].map((end) => stretches.map((i) => sketch.at(end, i, layer)).filter(Number.isFinite));
    if (isLog) sample = sample.filter((value) => value > 0);
    if (!sample.length) continue;
    const lowest = Math.min(...ends[0]);
    box.y.push(layer);
    box.q1.push(quantile(sample, 0.25));
    box.median.push(quantile(sample, 0.5));
    box.q3.push(quantile(sample, 0.75));
    box.lowerfence.push(isLog && !(lowest > 0) ? sample[0] : lowest);
    box.upperfence.push(Math.max(...ends[1]));
  }
  const height = layerHeight(layers.length);
  const data = ["blue", "orange"].map((tint) => {
    const chosen = box.y.map((_, i) => i).filter((i) => (box.y[i] === view.layer) === (tint === "orange"));
    const pick = (values) => chosen.map((i) => values[i]);
    return {
      type: "box", orientation: "h", ...Object.fromEntries(Object.entries(box).map(([key, values]) => [key, pick(values)])), y: pick(box.y).map((layer) => plain(layers[layer])),
      line: { color: color(tint), width: 1.2 }, fillcolor: color(tint, 0.25), width: 0.7, hoverinfo: "x", name: "",
    };
  }).filter((trace) => trace.y.length);
  return {
    data, height: height + 60,
    layout: { margin: { l: 40, r: 14, t: 8, b: 42 }, xaxis: (isLog ? logAxis : linearAxis)(boxRange(box, isLog), { title: { text: STATISTICS[name], standoff: 4 } }), yaxis: layerAxis(layers, height) },
  };
}

function boxChart(view) {
  const sketches = sketchesOf(view.run);
  if (!sketches.norm && !sketches.mean) return el("p", { class: "empty" }, "No statistic of a layer was recorded.");
  let name = Object.keys(sketches)[0];
  const figure = chart(view, {
    label: "Box plots of a statistic of every layer over the chosen span of steps", follows: ["span", "layer"], build: () => boxFigure(view, sketches, name),
    onClick: ([point]) => view.set("layer", Math.max(0, view.run.layers.map(plain).indexOf(point.y))),
  });
  const redraw = () => figure.querySelector(".chart").redraw();
  const statistic = choice("Statistic", Object.keys(sketches).map((key) => [key, STATISTICS[key]]), name, (value) => { name = value; redraw(); });
  return el("div", {}, controls(statistic, spanChoice(view)), figure);
}

function evolutionFigure(view, sketches) {
  const names = Object.keys(sketches);
  const isNarrow = innerWidth < 640 || DATA.runs.length > 1;
  const columns = isNarrow ? 1 : 2;
  const lines = Math.ceil(names.length / columns);
  const layout = { margin: { l: 62, r: 14, t: 22, b: 36 }, annotations: [], grid: undefined };
  const data = [];
  const gap = { x: 0.09, y: (columns === 1 ? 0.28 : 0.2) / lines };
  names.forEach((name, place) => {
    const [row, column] = [Math.floor(place / columns), place % columns];
    const width = (1 - gap.x * (columns - 1)) / columns;
    const height = (1 - gap.y * (lines - 1)) / lines;
    const isWide = columns === 2 && place === names.length - 1 && column === 0;
    const x = [column * (width + gap.x), isWide ? 1 : column * (width + gap.x) + width];
    const top = 1 - row * (height + gap.y);
    const suffix = place ? String(place + 1) : "";
    const sketch = sketches[name];
    const isLog = ["norm", "std"].includes(name);
    const clean = (values) => values.map((value) => (Number.isFinite(value) && (!isLog || value > 0) ? value : null));
    const own = { xaxis: `x${suffix}`, yaxis: `y${suffix}` };
    const steps = sketch.middles;
    if (sketch.depth > 1) {
      const band = { ...own, x: steps, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
      data.push({ ...band, y: clean(sketch.row(0, view.layer)) }, { ...band, y: clean(sketch.row(4, view.layer)), fill: "tonexty", fillcolor: color("sky", 0.3) });
    }
    const isSparse = steps.length < 40;
    data.push(line(steps, clean(sketch.row(2, view.layer)), STATISTICS[name], color("blue"), { ...own, mode: isSparse ? "lines+markers" : "lines", marker: { size: 5, color: color("blue") } }));
    const odd = steps.filter((_, i) => sketch.at(4, i, view.layer) === Infinity);
    if (odd.length) {
      data.push({ ...own, x: odd, y: odd.map(() => Math.max(1e-12, ...clean(sketch.row(4, view.layer)).filter((v) => v !== null))), mode: "markers", marker: { color: color("red"), symbol: "triangle-up", size: 8 }, hovertemplate: "step %{x}<br>not finite<extra></extra>" });
    }
    layout[`xaxis${suffix}`] = axis({ domain: x, anchor: `y${suffix}`, ...(place ? { matches: "x" } : {}), showticklabels: row === lines - 1, nticks: 6 });
    const known = [0, 4].flatMap((end) => clean(sketch.row(end, view.layer))).filter((value) => value !== null);
    const range = known.length ? [Math.log10(Math.min(...known)) - 0.1, Math.log10(Math.max(...known)) + 0.1] : undefined;
    const side = { domain: [top - height, top], anchor: `x${suffix}` };
    layout[`yaxis${suffix}`] = isLog ? logAxis(range, side) : axis({ ...side, exponentformat: "e", nticks: 5, rangemode: name === "zero_ratio" ? "tozero" : "normal" });
    layout.annotations.push({ text: `<b>${STATISTICS[name]}</b>`, x: x[0], y: top, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12 } });
  });
  return { data, layout, height: 56 + lines * (columns === 1 ? 150 : 175) };
}

function evolutionChart(view) {
  const sketches = sketchesOf(view.run);
  if (!Object.keys(sketches).length) return el("p", { class: "empty" }, "No statistic of a layer was recorded.");
  const shape = el("span", { class: "facts-line" });
  const name = () => (shape.textContent = view.run.shapes[view.run.layers[view.layer]] ?? "");
  view.on("layer", name);
  name();
  return el("div", {}, controls(layerChoice(view), shape), chart(view, {
    label: "Norm, mean, standard deviation, largest entry and share of zeros of one layer's gradient over the steps",
    follows: ["layer"], isTimed: true, build: () => evolutionFigure(view, sketches),
  }));
}
