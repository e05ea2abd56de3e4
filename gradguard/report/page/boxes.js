"use strict";
// A statistic of every layer over the chosen span of steps.

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
  const data = ["blue", "orange"]
    .map((tint) => {
      const chosen = box.y.map((_, i) => i).filter((i) => (box.y[i] === view.layer) === (tint === "orange"));
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
  return {
    data,
    height: height + 60,
    layout: {
      margin: layerMargin(layers, height, { b: 48 }),
      xaxis: (isLog ? logAxis : linearAxis)(boxRange(box, isLog), { title: { text: STATISTICS[name], standoff: 4 } }),
      yaxis: layerAxis(layers, height),
    },
  };
}

function boxChart(view) {
  const sketches = sketchesOf(view.run);
  if (!sketches.norm && !sketches.mean) return el("p", { class: "empty" }, "No statistic of a layer was recorded.");
  let name = Object.keys(sketches)[0];
  const figure = chart(view, {
    label: "Box plots of a statistic of every layer over the chosen span of steps",
    follows: ["span", "layer"],
    build: () => boxFigure(view, sketches, name),
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
  return el("div", {}, controls(statistic, spanChoice(view)), figure);
}
