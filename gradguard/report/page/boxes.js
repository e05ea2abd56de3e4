"use strict";
// A statistic of every layer over the chosen span of steps.

const linearAxis = (range, extra) => axis({ ...extra, nticks: 7, exponentformat: "e" });
// As many decades are named as there is room for.
function wideLogAxis(range, extra) {
  const most = innerWidth < 640 || DATA.runs.length > 1 ? 4 : 10;
  const decades = range ? range[1] - range[0] : 0;
  return logAxis(range, { ...extra, tickangle: 0, ...(decades > most ? { dtick: Math.ceil(decades / most) } : {}) });
}

// Of the layers that are not far below the others.
function boxRange({ y, lowerfence, upperfence }, far) {
  const near = y.map((_, i) => i).filter((i) => !far.has(y[i]));
  if (!near.length) return undefined;
  const low = Math.log10(Math.min(...near.map((i) => lowerfence[i])));
  const high = Math.log10(Math.max(...near.map((i) => upperfence[i])));
  const margin = Math.max(0.1, (high - low) * 0.04);
  return [low - margin, high + margin];
}

const isLogStatistic = (name) => ["norm", "std", "max"].includes(name);

function boxFigure(view, sketches, name, stretches, far) {
  const { layers } = view.run;
  const sketch = sketches[name];
  const isLog = isLogStatistic(name);
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
  const data = ["blue", "orange"]
    .map((tint) => {
      const near = box.y.map((_, i) => i).filter((i) => !far.has(box.y[i]));
      const chosen = near.filter((i) => (box.y[i] === view.layer) === (tint === "orange"));
      const pick = (values) => chosen.map((i) => values[i]);
      return {
        type: "box",
        orientation: "h",
        ...Object.fromEntries(Object.entries(box).map(([key, values]) => [key, pick(values)])),
        y: pick(box.y).map((layer) => plain(layers[layer])),
        line: { color: color(tint), width: 1.2 },
        fillcolor: color(tint, 0.25),
        width: 0.7,
        hoverinfo: "x",
        name: "",
      };
    })
    .filter((trace) => trace.y.length);
  const range = isLog ? boxRange(box, far) : undefined;
  // What lies beside the axis is told at its end.
  const beside = box.y.map((layer, i) => ({ layer, i })).filter(({ layer }) => far.has(layer));
  const annotations = beside.map(({ layer, i }) => ({
    x: 0,
    xref: "paper",
    y: plain(layers[layer]),
    text: `◂ ${number(box.median[i], 3)}`,
    showarrow: false,
    xanchor: "left",
    font: { size: LAYER_LABEL, color: color(layer === view.layer ? "orange" : "blue") },
  }));
  return {
    data,
    layout: {
      annotations,
      margin: layerMargin(layers, height, { b: 44 }),
      xaxis: (isLog ? wideLogAxis : linearAxis)(range, { title: { text: STATISTICS[name], standoff: 4 } }),
      yaxis: layerAxis(layers, height),
    },
  };
}

function boxChart(view) {
  const sketches = sketchesOf(view.run);
  if (!sketches.norm && !sketches.mean) return el("p", { class: "empty" }, "No statistic of a layer was recorded.");
  const { layers } = view.run;
  let name = Object.keys(sketches)[0];
  const under = el("div", { class: "under" });
  const figure = chart(view, {
    label: "Box plots of a statistic of every layer over the chosen span of steps",
    follows: ["span", "layer"],
    height: () => layerHeight(layers.length) + BELOW,
    build: () => {
      const stretches = sketches[name].stretches(view.shownSpan);
      const far = isLogStatistic(name) ? farBelow(usualOf(sketches[name], stretches)) : new Set();
      under.replaceChildren(farBelowNote(layers, far, "At the left edge stands the median of each.") ?? "");
      return boxFigure(view, sketches, name, stretches, far);
    },
    onClick: ([point]) => view.set("layer", Math.max(0, view.run.layers.map(plain).indexOf(point.y))),
  });
  const redraw = () => figure.querySelector(".chart").redraw();
  const statistic = choice(
    "Statistic",
    Object.keys(sketches).map((key) => [key, STATISTICS[key]]),
    name,
    (value) => {
      name = value;
      redraw();
    },
  );
  const colors = legend([
    [swatch("orange", { band: 0.25 }), "the chosen layer"],
    [swatch("blue", { band: 0.25 }), "the others"],
  ]);
  return el("div", {}, controls(statistic, spanChoice(view)), colors, figure, under);
}
