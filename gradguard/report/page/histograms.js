"use strict";
// Histograms of one layer's gradient: at one probe, and at all of them.

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
  return {
    tickvals: kept,
    ticktext: kept.map((k) => (k === 0 ? "0" : `${k < 0 ? "−" : ""}${size(k).toExponential(0).replace("e+", "e")}`)),
  };
}

const areHistogramsNarrow = () => innerWidth < 640 || DATA.runs.length > 1;

function histogramFigure(view, told, probe) {
  const { rows, places, size } = histogramRows(view, told);
  const isNarrow = areHistogramsNarrow();
  const room = innerWidth < 640 ? 5 : 9;
  const range = (k) =>
    k === 0 ? "around 0" : `${k < 0 ? "−" : ""}${number(size(k), 3)} and ${number(size(Math.abs(k) + 1), 3)} in size`;
  const percent = (row) => row.map((share) => share * 100);
  const data = [
    {
      type: "bar",
      x: places,
      y: percent(rows[probe]),
      marker: { color: color("blue", 0.75) },
      text: places.map(range),
      textposition: "none",
      hovertemplate: "%{text}: %{y:.2~f} %<extra></extra>",
    },
    {
      x: places,
      y: percent(rows[0]),
      mode: "lines",
      line: { shape: "hvh", color: color("orange"), width: 1.6 },
      hoverinfo: "skip",
    },
    {
      type: "heatmap",
      xaxis: "x2",
      yaxis: "y2",
      x: told.step.map(String),
      y: places,
      z: places.map((_, i) => rows.map((row) => (row[i] > 0 ? Math.log10(row[i] * 100) : null))),
      zmin: -2,
      zmax: 2,
      colorscale: "Cividis",
      colorbar: {
        thickness: 10,
        outlinewidth: 0,
        tickfont: { size: 11 },
        tickvals: [-2, -1, 0, 1, 2],
        ticktext: ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
        x: 1.005,
        xpad: 4,
        ...(isNarrow ? { y: 0.2, len: 0.42 } : { len: 1 }),
      },
      customdata: places.map((k, i) => rows.map((row) => `${number(row[i] * 100, 3)} % ${plain(range(k))}`)),
      hovertemplate: "step %{x}: %{customdata}<extra></extra>",
    },
  ];
  const split = isNarrow
    ? { x: [0, 1], y: [0.57, 1], x2: [0, 1], y2: [0, 0.4] }
    : { x: [0, 0.47], y: [0, 1], x2: [0.56, 1], y2: [0, 1] };
  return {
    data,
    layout: {
      margin: { l: 60, r: 70, t: 8, b: 46 },
      bargap: 0.05,
      xaxis: axis({
        domain: split.x,
        anchor: "y",
        title: { text: "size of an entry", standoff: 4 },
        ...sizeTicks(places, size, room),
        tickangle: 0,
        zeroline: false,
        fixedrange: true,
      }),
      yaxis: axis({ domain: split.y, anchor: "x", title: { text: "% of entries" }, fixedrange: true }),
      xaxis2: axis({
        domain: split.x2,
        anchor: "y2",
        type: "category",
        title: { text: "step of the probe", standoff: 4 },
        nticks: 7,
        tickangle: 0,
        showgrid: false,
        fixedrange: true,
      }),
      yaxis2: axis({
        domain: split.y2,
        anchor: "x2",
        ...sizeTicks(places, size, 9),
        title: { text: "size of an entry", standoff: 6 },
        showgrid: false,
        zeroline: false,
        fixedrange: true,
      }),
      shapes: [
        {
          type: "rect",
          xref: "x2",
          yref: "y2 domain",
          x0: probe - 0.5,
          x1: probe + 0.5,
          y0: 0,
          y1: 1,
          line: { color: color("orange"), width: 2 },
        },
      ],
    },
  };
}

function histogramChart(view) {
  const told = view.run.histograms;
  if (!told)
    return el(
      "p",
      { class: "empty" },
      "Gradients were not probed (monitor: statistics), or the run ended before the first probe.",
    );
  const opened = { step: told.step, bytes: bytes(told.levels), tops: bytes(told.top) };
  let probe = told.step.length - 1;
  const figure = chart(view, {
    label: "Histogram of one layer's gradient at a probe, and at all probes",
    follows: ["layer"],
    height: () => (areHistogramsNarrow() ? 560 : 340),
    build: () => histogramFigure(view, opened, probe),
    onClick: ([point]) => point.data.type === "heatmap" && choose(point.pointNumber[1]),
  });
  const output = el("output", {}, `step ${number(told.step[probe])}`);
  const slider = el("input", {
    type: "range",
    min: 0,
    max: told.step.length - 1,
    value: probe,
    "aria-label": "Probe",
    oninput: () => choose(Number(slider.value)),
  });
  function choose(place) {
    probe = place;
    slider.value = place;
    output.textContent = `step ${number(told.step[place])}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    figure.querySelector(".chart").redraw();
  }
  return el(
    "div",
    {},
    controls(layerChoice(view), el("label", {}, el("span", {}, "Probe at ", output), slider)),
    legend([
      [swatch("blue", { width: 0, band: 0.75 }), "this probe"],
      [swatch("orange"), `the first probe (step ${number(told.step[0])})`],
      [el("i", { class: "frame" }), "this probe among all of them; colour: share of the entries"],
    ]),
    figure,
  );
}
