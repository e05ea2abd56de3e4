"use strict";
// Every layer over time.

const PARTS = [
  ["4", "largest"],
  ["2", "median"],
  ["0", "smallest"],
];

// The same colours for all runs, so that what stands side by side can be compared. Few values, and layers far below the
// others, may lie outside: the scale says so where they do.
const heatRange = (() => {
  const known = {};
  return (part) => (known[part] ??= computed(part));
  function computed(part) {
    const [usual, all] = [[], []];
    for (const run of DATA.runs) {
      const norms = sketchOf(run.norms);
      if (!norms) continue;
      const far = farBelow(usualOf(norms, everyStretch(norms)));
      for (let layer = 0; layer < norms.series; layer++) {
        const logs = norms.row(part, layer).map(Math.log10).filter(Number.isFinite);
        all.push(...logs);
        if (!far.has(layer)) usual.push(...logs);
      }
    }
    if (!usual.length) return { low: 0, high: 1, isBelow: false, isAbove: false };
    const [values, ends] = [Float64Array.from(usual).sort(), all.reduce(widened, [Infinity, -Infinity])];
    const trimmed = [quantile(values, 0.005), quantile(values, 0.995)];
    const isWide = values.at(-1) - values[0] > 2;
    const low = isWide ? roundEnd(trimmed[0], -1) : values[0];
    const high = Math.max(isWide ? roundEnd(trimmed[1], 1) : values.at(-1), low + 0.5);
    return { low, high, isBelow: ends[0] < low, isAbove: ends[1] > high };
  }
})();
// The next of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... below or above, as an exponent.
function roundEnd(exponent, side) {
  const ends = [0, 1, 2].flatMap((digits) =>
    [1, 2, 5].map((digit) => Math.floor(exponent) + digits - 1 + Math.log10(digit)),
  );
  return side < 0 ? ends.findLast((end) => end <= exponent) : ends.find((end) => end >= exponent);
}
const widened = ([low, high], value) => [Math.min(low, value), Math.max(high, value)];

// A decade a label, and at an end that values lie beyond: which way.
function heatScale({ low, high, isBelow, isAbove }, height) {
  const each = high - low > 1.6 ? Math.ceil((high - low) / 7) : 0.5;
  const inner = [];
  for (let at = Math.ceil(low / each) * each; at <= high; at += each) inner.push(at);
  const text = (at) => {
    const digit = Math.round(10 ** (at - Math.floor(at + 1e-9)));
    const decade = `10<sup>${String(Number(Math.floor(at + 1e-9).toFixed(1))).replace("-", "−")}</sup>`;
    return digit > 1 ? `${digit}·${decade}` : decade;
  };
  const room = ((high - low) * 15) / (0.9 * height);
  const isFree = (at) => !(isBelow && at - low < room) && !(isAbove && high - at < room);
  const ticks = inner.filter(isFree).map((at) => [at, ""]);
  if (isBelow) ticks.unshift([low, "&lt; "]);
  if (isAbove) ticks.push([high, "&gt; "]);
  return {
    tickvals: ticks.map(([at]) => at),
    ticktext: ticks.map(([at, sign]) => sign + text(at)),
  };
}

function heatFigure(view, norms, part, isOdd) {
  const { layers } = view.run;
  const values = layers.map((_, layer) => norms.row(part, layer));
  const z = values.map((row) =>
    row.map((value) => (value > 0 && value < Infinity ? Math.log10(value) : value === 0 ? -99 : null)),
  );
  const range = heatRange(part);
  const [zmin, zmax] = [range.low, range.high];
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
        ...heatScale(range, height),
        tickfont: { size: 11 },
        x: 1.005,
        xpad: 4,
      },
    },
  ];
  if (isOdd) {
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
  const { layers } = view.run;
  let part = 4;
  const under = el("div", { class: "under" });
  const figure = chart(view, {
    label: "Heat map of the gradient norm of every layer over the steps, first layers on top",
    isTimed: true,
    height: () => layerHeight(layers.length) + BELOW,
    build: () => {
      const found = new Set(norms.values.map((value) => (value === Infinity ? 1 : Number.isNaN(value) ? -1 : 0)));
      const far = farBelow(usualOf(norms, everyStretch(norms)));
      under.replaceChildren(
        ...[
          legend(
            found.has(1) && [[swatch("red", { band: 1, width: 0 }), "NaN or Inf in this layer's gradient"]],
            found.has(-1) && [["Blank: no gradient."]],
          ),
          farBelowNote(layers, far, "Such rows are drawn in the darkest colour, and leave the scale to the others."),
        ].filter(Boolean),
      );
      return heatFigure(view, norms, part, found.has(1));
    },
    onClick: ([point]) => view.set("layer", point.pointNumber[0]),
  });
  const redraw = () => figure.querySelector(".chart").redraw();
  const isAnyLong = DATA.runs.some((run) => (sketchOf(run.norms)?.depth ?? 1) > 1);
  const parts = norms.depth > 1 ? PARTS : [["4", "only one"]];
  const stretch =
    isAnyLong &&
    choice("Of each stretch of steps the", parts, "4", (value) => {
      part = Number(value);
      redraw();
    });
  return el("div", {}, controls(stretch), figure, under);
}
