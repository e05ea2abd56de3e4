"use strict";
// Dead units and saturated entries of every activation over time.

const SEEN = { dead: "dead units", saturated: "saturated entries" };
const WORTH_SEEING = 0.01; // a share below this everywhere is told in words

function largestShare(sketch) {
  let largest = { share: -1 };
  for (let stretch = 0; stretch < sketch.width; stretch++) {
    for (let place = 0; place < sketch.series; place++) {
      const share = sketch.at(4, stretch, place);
      if (share > largest.share) largest = { share, place, step: sketch.first[stretch] };
    }
  }
  return largest;
}

// Places with something to show; inputs that are no ReLU's are told at the first probe only.
function activationRows({ places }, sketch) {
  const seen = places.map((_, i) => sketch.row(4, i).filter(Number.isFinite));
  const most = Math.max(...seen.map((values) => values.length));
  return places
    .map((_, i) => i)
    .filter((i) => seen[i].length > 1 || seen[i].some((value) => value > 0) || (most === 1 && seen[i].length));
}
const activationHeight = (rows) => Math.min(Math.max(rows.length * 22, 60), 620);

function activationFigure(view, sketch) {
  const { places, kinds } = view.run.activations;
  const rows = activationRows(view.run.activations, sketch);
  const names = rows.map((i) => `${places[i]} (${kinds[i]})`);
  const height = activationHeight(rows);
  const z = rows.map((i) => sketch.row(4, i).map((value) => (Number.isFinite(value) ? value : null)));
  const hasRoom = sketch.width <= 14 && height / rows.length >= 16 && innerWidth > 640;
  return {
    data: [
      {
        type: "heatmap",
        x: sketch.edges(),
        y: names.map(plain),
        z,
        zmin: 0,
        zmax: 1,
        colorscale: "Cividis",
        xgap: 1,
        ygap: 1,
        hoverongaps: false,
        text: z.map((row) => row.map((value) => (value === null ? "" : `${Math.round(value * 100)}%`))),
        texttemplate: hasRoom ? "%{text}" : undefined,
        hovertemplate: "%{y}<br>step %{x:.0f}: %{text}<extra></extra>",
        colorbar: {
          thickness: 10,
          outlinewidth: 0,
          tickformat: ".0%",
          len: 0.95,
          x: 1.005,
          xpad: 4,
          tickvals: [0, 0.5, 1],
        },
      },
    ],
    layout: {
      margin: layerMargin(names, height, { r: 68 }),
      xaxis: axis({ title: { text: "step", standoff: 4 }, showgrid: false, zeroline: false }),
      yaxis: layerAxis(names, height),
    },
  };
}

function activationChart(view) {
  const told = view.run.activations;
  if (!told)
    return el(
      "p",
      { class: "empty" },
      "Activations were not looked at: no rule of the policy reads them, or the run ended before the first probe.",
    );
  const seen = {};
  for (const name of Object.keys(SEEN)) {
    const sketch = sketchOf(told[name]);
    if (sketch && sketch.values.some(Number.isFinite)) seen[name] = sketch;
  }
  if (!Object.keys(seen).length) return el("p", { class: "empty" }, "No activation that can die or saturate was seen.");
  const largest = Object.entries(seen).map(([name, sketch]) => [name, largestShare(sketch)]);
  const names = largest.filter(([, { share }]) => share >= WORTH_SEEING).map(([name]) => name);
  const calm = largest
    .filter(([name]) => !names.includes(name))
    .map(([name, most]) => el("p", { class: "note" }, calmSentence(told.places, name, most)));
  if (!names.length) return el("div", {}, calm);
  let name = names[0];
  const figure = chart(view, {
    label: "Share of dead units or saturated entries of every activation over the steps",
    isTimed: true,
    height: () => activationHeight(activationRows(told, seen[name])) + BELOW,
    build: () => activationFigure(view, seen[name]),
  });
  const what =
    names.length < 2
      ? el("span", { class: "facts-line" }, SEEN[name])
      : choice(
          "Share of",
          names.map((key) => [key, SEEN[key]]),
          name,
          (value) => {
            name = value;
            figure.querySelector(".chart").redraw();
          },
        );
  return el("div", {}, controls(what), figure, calm);
}

function calmSentence(places, name, { share, place, step }) {
  if (!(share > 0)) return `No ${SEEN[name]} at any probe.`;
  const most = `the largest share was ${number(share * 100, 2)} %`;
  return `Hardly any ${SEEN[name]}: ${most}, in ${places[place]} at step ${number(step)}.`;
}
