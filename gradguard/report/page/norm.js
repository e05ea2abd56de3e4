"use strict";
// The global gradient norm with what the guard took for usual, and from where on it would alarm.

// Of all runs, with their thresholds unless these are far away.
function normRange() {
  const range = sharedRange(DATA.runs, "norm", true) ?? [-1, 1];
  const highest = DATA.runs
    .flatMap(({ alarm, curves }) => {
      const ratio = Math.max(1, ...alarm.ratios);
      return curves.median.filter(isPositive).map((value) => value * ratio);
    })
    .reduce((a, b) => Math.max(a, b), 0);
  if (highest > 0) range[1] = Math.max(range[1], Math.min(Math.log10(highest) + 0.15, range[1] + 2.5));
  return range;
}

function normFigure(view) {
  const { curves, alarm } = view.run;
  const pick = (values) => view.drawnRows.map((i) => values[i]);
  const [x, median, norm, clip] = [curves.step, curves.median, curves.norm, curves.clip].map(pick);
  const times = (ratio) => median.map((value) => (value === null ? null : value * ratio));
  const band = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", connectgaps: false };
  const data = [
    { ...band, x, y: pick(curves.low) },
    { ...band, x, y: pick(curves.high), fill: "tonexty", fillcolor: color("sky", 0.25) },
    line(x, median, "usual", color("sky"), { line: { width: 1.2 } }),
  ];
  data.push(
    line(
      x,
      norm.map((value) => (isPositive(value) ? value : null)),
      "gradient norm",
      color("blue"),
      { line: { width: x.length > 2000 ? 1 : 1.6 } },
    ),
  );
  alarm.ratios.forEach((ratio, i) =>
    data.push(
      line(x, times(ratio), `${number(ratio)} times the usual`, color(i ? "red" : "orange"), {
        line: { width: 1.4, dash: i ? "solid" : "dash" },
      }),
    ),
  );
  const clipped = x.map((_, i) => i).filter((i) => clip[i] !== null && clip[i] < 1 && isPositive(norm[i]));
  if (clipped.length) {
    data.push({
      x: clipped.map((i) => x[i]),
      y: clipped.map((i) => norm[i] * clip[i]),
      mode: "markers",
      name: "after clipping",
      marker: { color: color("green"), size: 4, symbol: "circle-open" },
      hovertemplate: "step %{x}<br>clipped to %{y:.4~g}<extra></extra>",
    });
  }
  const range = normRange();
  const shapes =
    alarm.clip === null
      ? []
      : [
          {
            type: "line",
            xref: "paper",
            x0: 0,
            x1: 1,
            y0: alarm.clip,
            y1: alarm.clip,
            line: { color: color("green"), dash: "dot", width: 1.4 },
          },
        ];
  if (curves.odd.length) {
    data.push({
      x: curves.odd,
      y: curves.odd.map(() => 10 ** (range[1] - 0.02 * (range[1] - range[0]))),
      mode: "markers",
      name: "not finite",
      marker: { color: color("red"), size: 9, symbol: "triangle-up" },
      hovertemplate: "step %{x}<br>the gradient was not finite<extra></extra>",
    });
  }
  return {
    data,
    height: 330,
    layout: {
      margin: { l: 66, r: 14, t: 8, b: 44 },
      shapes,
      xaxis: axis({ title: { text: "step", standoff: 4 } }),
      yaxis: logAxis(range, { title: { text: "gradient norm", standoff: 8 } }),
    },
  };
}

function normChart(view) {
  const { alarm, curves } = view.run;
  const entry = (ink, text, dash = "solid") => el("span", {}, swatch(ink, dash), text);
  const legend = el(
    "div",
    { class: "legend" },
    entry("blue", "global norm, before any clip"),
    entry("sky", `usual: median of ${alarm.window} steps, and where nearly all lie`, "band"),
    alarm.ratios.map((ratio, i) =>
      entry(
        i ? "red" : "orange",
        i ? `${number(ratio)}×: alarm at once` : `${number(ratio)}×: alarm if it stands out twice`,
        i ? "solid" : "dash",
      ),
    ),
    alarm.clip === null ? null : entry("green", `clipped to ${number(alarm.clip)} at every step`, "dash"),
    curves.odd.length ? el("span", {}, el("i", { class: "tone-bad" }, "▲"), "not finite") : null,
  );
  return el(
    "div",
    {},
    legend,
    chart(view, {
      label: "Global gradient norm over the steps, with its usual range and the alarm thresholds",
      build: () => normFigure(view),
      isTimed: true,
      isFirst: true,
      follows: view.isThinned ? ["span"] : [],
    }),
  );
}
