"use strict";
// All statistics of one layer over time.

// Statistics with something to see: a share of zeros that is always 0 is told in words.
function evolutionGrid(view, sketches) {
  const hasZeros = sketches.zero_ratio?.row(4, view.layer).some((value) => value > 0);
  const names = Object.keys(sketches).filter((name) => name !== "zero_ratio" || hasZeros);
  const columns = innerWidth < 640 || DATA.runs.length > 1 ? 1 : 2;
  const lines = Math.ceil(names.length / columns);
  return { names, hasZeros, columns, lines, height: 56 + lines * (columns === 1 ? 150 : 175) };
}

function evolutionFigure(view, sketches) {
  const { names, columns, lines } = evolutionGrid(view, sketches);
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
      data.push(
        { ...band, y: clean(sketch.row(0, view.layer)) },
        { ...band, y: clean(sketch.row(4, view.layer)), fill: "tonexty", fillcolor: color("sky", 0.3) },
      );
    }
    const isSparse = steps.length < 40;
    data.push(
      line(steps, clean(sketch.row(2, view.layer)), STATISTICS[name], color("blue"), {
        ...own,
        mode: isSparse ? "lines+markers" : "lines",
        marker: { size: 5, color: color("blue") },
      }),
    );
    const odd = steps.filter((_, i) => sketch.at(4, i, view.layer) === Infinity);
    if (odd.length) {
      data.push({
        ...own,
        x: odd,
        y: odd.map(() => Math.max(1e-12, ...clean(sketch.row(4, view.layer)).filter((v) => v !== null))),
        mode: "markers",
        marker: { color: color("red"), symbol: "triangle-up", size: 8 },
        hovertemplate: "step %{x}<br>not finite<extra></extra>",
      });
    }
    layout[`xaxis${suffix}`] = axis({
      domain: x,
      anchor: `y${suffix}`,
      ...(place ? { matches: "x" } : {}),
      showticklabels: row === lines - 1,
      nticks: 6,
    });
    const known = [0, 4].flatMap((end) => clean(sketch.row(end, view.layer))).filter((value) => value !== null);
    const range = known.length
      ? [Math.log10(Math.min(...known)) - 0.1, Math.log10(Math.max(...known)) + 0.1]
      : undefined;
    const side = { domain: [top - height, top], anchor: `x${suffix}` };
    layout[`yaxis${suffix}`] = isLog
      ? logAxis(range, side)
      : axis({ ...side, exponentformat: "e", nticks: 5, rangemode: name === "zero_ratio" ? "tozero" : "normal" });
    layout.annotations.push({
      text: `<b>${STATISTICS[name]}</b>`,
      x: x[0],
      y: top,
      xref: "paper",
      yref: "paper",
      xanchor: "left",
      yanchor: "bottom",
      showarrow: false,
      font: { size: 12 },
    });
  });
  return { data, layout };
}

function evolutionChart(view) {
  const sketches = sketchesOf(view.run);
  if (!Object.keys(sketches).length) return el("p", { class: "empty" }, "No statistic of a layer was recorded.");
  const [shape, under] = [el("span", { class: "facts-line" }), el("div", { class: "under" })];
  const isLong = Object.values(sketches).some((sketch) => sketch.depth > 1);
  const tell = () => {
    shape.textContent = view.run.shapes[view.run.layers[view.layer]] ?? "";
    const isOdd = Object.values(sketches).some((sketch) => sketch.row(4, view.layer).includes(Infinity));
    const { hasZeros } = evolutionGrid(view, sketches);
    const signs = legend(
      isLong && [
        [swatch("blue"), "median of each stretch of steps"],
        [swatch("sky", { width: 0, band: 0.3 }), "its smallest to largest"],
      ],
      isOdd && [[symbolSign("triangle-up", "red"), "NaN or Inf"]],
    );
    const zeros = sketches.zero_ratio && !hasZeros ? el("p", { class: "note" }, "No entry was 0 at any probe.") : null;
    under.replaceChildren(...[signs, zeros].filter(Boolean));
  };
  return el(
    "div",
    {},
    controls(layerChoice(view), shape),
    chart(view, {
      label: "Norm, mean, standard deviation, largest entry and share of zeros of one layer's gradient over the steps",
      follows: ["layer"],
      isTimed: true,
      height: () => evolutionGrid(view, sketches).height,
      build: () => {
        tell();
        return evolutionFigure(view, sketches);
      },
    }),
    under,
  );
}
