"use strict";
// The updates of the optimizer beside the weights that they change.

function updatesFigure(view, ratios, far) {
  const { layers, guide } = view.run;
  const x = ratios.middles;
  const near = layers.map((_, layer) => layer).filter((layer) => !far.has(layer));
  const across = x.map((_, i) => {
    const values = near
      .map((layer) => ratios.at(2, i, layer))
      .filter((value) => Number.isFinite(value) && value > 0)
      .sort((a, b) => a - b);
    return values.length
      ? [0, 0.25, 0.5, 0.75, 1].map((share) => quantile(values, share))
      : [null, null, null, null, null];
  });
  const level = (k) => across.map((five) => five[k]);
  const band = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  const isSparse = x.length < 40;
  const marks = isSparse ? { mode: "lines+markers" } : {};
  const own = ratios.row(2, view.layer).map((value) => (Number.isFinite(value) && value > 0 ? value : null));
  const data = [
    { ...band, y: level(0) },
    { ...band, y: level(4), fill: "tonexty", fillcolor: color("sky", 0.15) },
    { ...band, y: level(1) },
    { ...band, y: level(3), fill: "tonexty", fillcolor: color("sky", 0.3) },
    line(x, level(2), "median layer", color("blue"), { ...marks, marker: { size: 5, color: color("blue") } }),
    line(x, own, "chosen layer", color("orange"), {
      ...marks,
      line: { width: 2 },
      marker: { size: 6, symbol: "square", color: color("orange") },
    }),
  ];
  return {
    data,
    layout: {
      margin: { l: 66, r: 14, t: 8, b: 44 },
      xaxis: axis({ title: { text: "step", standoff: 4 } }),
      yaxis: logAxis(ratioRange([...level(0), ...level(4), ...own, guide]), {
        title: { text: "update / weight", standoff: 8 },
      }),
      shapes: [
        {
          type: "line",
          xref: "paper",
          x0: 0,
          x1: 1,
          y0: guide,
          y1: guide,
          line: { color: color("green"), width: 1.5, dash: "dash" },
        },
      ],
      annotations: [
        {
          xref: "paper",
          x: 0.005,
          y: Math.log10(guide),
          text: "10<sup>−3</sup> is usual",
          showarrow: false,
          xanchor: "left",
          yanchor: "bottom",
          font: { color: color("green"), size: 11 },
          bgcolor: color("card", 0.8),
        },
      ],
    },
  };
}

function ratioRange(values) {
  const logs = values.filter(isPositive).map(Math.log10);
  return [Math.min(...logs) - 0.3, Math.max(...logs) + 0.3];
}

function updatesChart(view) {
  const ratios = sketchOf(view.run.updates);
  if (!ratios)
    return el("p", { class: "empty" }, "The optimizer's updates were not looked at: no rule of the policy reads them.");
  const marked = ratios.width < 40;
  const under = el("div", { class: "under" });
  return el(
    "div",
    {},
    controls(layerChoice(view)),
    legend([
      [swatch("orange", { symbol: marked && "square" }), "the chosen layer"],
      [swatch("blue", { symbol: marked && "circle", width: 1.6 }), "median of all layers"],
      [swatch("sky", { width: 0, band: 0.45 }), "half of them"],
      [swatch("sky", { width: 0, band: 0.15 }), "all of them"],
    ]),
    chart(view, {
      label: "Norm of the update over norm of the weight, over the steps",
      follows: ["layer"],
      isTimed: true,
      height: () => 300,
      build: () => {
        const far = farBelow(usualOf(ratios, everyStretch(ratios)));
        under.replaceChildren(farBelowNote(view.run.layers, far, "The bands leave them out.") ?? "");
        return updatesFigure(view, ratios, far);
      },
    }),
    under,
  );
}
