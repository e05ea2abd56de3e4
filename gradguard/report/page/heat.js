"use strict";
// Every layer over time.

const PARTS = [
  ["4", "largest"],
  ["2", "median"],
  ["0", "smallest"],
];

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
  const z = values.map((row) =>
    row.map((value) => (value > 0 && value < Infinity ? Math.log10(value) : value === 0 ? -99 : null)),
  );
  const [zmin, zmax] = heatRange(part);
  const height = layerHeight(layers.length);
  const map = { type: "heatmap", x: norms.edges(), y: layers.map(plain) };
  const data = [
    {
      ...map,
      z,
      zmin,
      zmax,
      colorscale: "Cividis",
      customdata: values,
      hovertemplate: "%{y}<br>step %{x:.0f}: norm %{customdata:.3~g}<extra></extra>",
      colorbar: {
        thickness: 10,
        outlinewidth: 0,
        len: 0.9,
        tickprefix: "10<sup>",
        ticksuffix: "</sup>",
        tickfont: { size: 11 },
        dtick: zmax - zmin > 1.6 ? Math.ceil((zmax - zmin) / 7) : 0.5,
        x: 1.005,
        xpad: 4,
      },
    },
  ];
  if (values.some((row) => row.includes(Infinity))) {
    const odd = values.map((row) => row.map((value) => (value === Infinity ? 1 : null)));
    data.push({
      ...map,
      z: odd,
      zmin: 0,
      zmax: 1,
      showscale: false,
      colorscale: [
        [0, color("red")],
        [1, color("red")],
      ],
      hovertemplate: "%{y}<br>step %{x:.0f}: not finite<extra></extra>",
    });
  }
  return {
    data,
    height: height + 60,
    layout: {
      margin: layerMargin(layers, height, { r: 62 }),
      xaxis: axis({ title: { text: "step", standoff: 4 }, showgrid: false, zeroline: false }),
      yaxis: layerAxis(layers, height),
    },
  };
}

function heatChart(view) {
  const norms = sketchOf(view.run.norms);
  if (!norms) return el("p", { class: "empty" }, "No gradient norm of a layer was recorded.");
  let part = 4;
  const figure = chart(view, {
    label: "Heat map of the gradient norm of every layer over the steps, first layers on top",
    isTimed: true,
    build: () => heatFigure(view, norms, part),
    onClick: ([point]) => view.set("layer", point.pointNumber[0]),
  });
  const redraw = () => figure.querySelector(".chart").redraw();
  const stretch =
    norms.depth === 1
      ? null
      : choice("Of each stretch of steps the", PARTS, "4", (value) => {
          part = Number(value);
          redraw();
        });
  return el("div", {}, controls(stretch), figure);
}
