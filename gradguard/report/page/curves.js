"use strict";
// Loss and learning rate with what the guard did, and the gradient norm with what it took for usual.

const LANE = 24;
const MOST_ON_CURVE = 250; // more marks would hide the curve
const isPositive = (value) => value !== null && value > 0;

function logOrNot(values) {
  const known = values.filter((value) => value !== null);
  if (!known.length || !known.every((value) => value > 0)) return "linear";
  return known.reduce((a, b) => Math.max(a, b)) > 30 * known.reduce((a, b) => Math.min(a, b)) ? "log" : "linear";
}

// The same range for all runs, so that what stands side by side can be compared.
function sharedRange(runs, name, isLog) {
  let [low, high] = [Infinity, -Infinity];
  for (const run of runs) {
    for (const value of run.curves[name]) {
      if (value === null || (isLog && !(value > 0))) continue;
      [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  }
  if (!(high >= low)) return undefined;
  const [from, to] = isLog ? [Math.log10(low), Math.log10(high)] : [low, high];
  const margin = (to - from || Math.abs(to) || 1) * 0.06;
  return [from - margin, to + margin];
}

function line(x, y, name, ink, extra = {}) {
  return {
    x, y, name, mode: "lines", connectgaps: false,
    hovertemplate: `step %{x}<br>${name} %{y:.4~g}<extra></extra>`, ...extra, line: { color: ink, width: 1.6, ...extra.line },
  };
}

// A step that stands between two others that are shown, for marks at steps whose own number is missing.
function nearest(steps, values, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  for (let i = low; i >= 0; i--) if (values[i] !== null) return values[i];
  return values.find((value) => value !== null) ?? null;
}

// What matters most lies on top.
function markTraces(marks, yOf, yaxis, size) {
  const traces = [];
  const isDense = marks.length > MOST_ON_CURVE;
  for (const outcome of [...RANK].reverse()) {
    const own = marks.filter((mark) => mark.outcome === outcome);
    if (!own.length) continue;
    const { color: ink, symbol } = outcomeOf(outcome);
    const isOpen = symbol.endsWith("open");
    traces.push({
      x: own.map((mark) => mark.step), y: own.map(yOf), yaxis, mode: "markers", cliponaxis: false,
      marker: { color: color(ink), size: isDense ? 6 : size, symbol, line: { color: isOpen ? color(ink) : color("card"), width: isOpen ? 1.5 : isDense ? 0 : 1 } },
      text: own.map(markText), hovertemplate: "%{text}<extra></extra>", customdata: own.map((mark) => mark.rows[0].place),
    });
  }
  return traces;
}

function rateAxis(extra) {
  const rates = DATA.runs.flatMap((run) => [...run.curves.lr, ...run.curves.effective]).filter(isPositive);
  const isLog = rates.length && logOrNot(rates) === "log";
  if (!isLog) return axis({ rangemode: "tozero", exponentformat: "e", nticks: 4, ...extra });
  const range = [Math.log10(rates.reduce((a, b) => Math.min(a, b))) - 0.2, Math.log10(rates.reduce((a, b) => Math.max(a, b))) + 0.2];
  return logAxis(range, extra);
}

function lossFigure(view, marks, scale) {
  const { curves } = view.run;
  const lanes = [...new Set(marks.map((mark) => mark.diagnosis))];
  const hasLoss = curves.loss.some((value) => value !== null);
  const heights = { lanes: lanes.length * LANE, loss: hasLoss ? 250 : 0, rate: 110 };
  const shown = thinned(marks, view.shownSpan);
  const gap = 16;
  const total = heights.lanes + heights.loss + heights.rate + (lanes.length ? gap : 0) + (hasLoss ? gap : 0);
  const rateTop = heights.rate / total;
  const lossBottom = (heights.rate + gap) / total;
  const lossTop = (heights.rate + gap + heights.loss) / total;
  const data = [];
  const pick = (values) => view.drawnRows.map((i) => values[i]);
  const x = pick(curves.step);
  const layout = {
    margin: { l: 62, r: 14, t: 8, b: 38 }, xaxis: axis({ title: { text: "step", standoff: 4 }, anchor: "y3" }),
    yaxis3: rateAxis({ domain: [0, rateTop], title: { text: "learning rate", standoff: 8 }, anchor: "x" }),
  };
  const guarded = curves.effective.some((value, i) => value !== curves.lr[i]);
  data.push(line(x, pick(curves.lr), "learning rate", color("grey"), { yaxis: "y3", line: { dash: guarded ? "dot" : "solid", width: guarded ? 1.6 : 2 } }));
  if (guarded) data.push(line(x, pick(curves.effective), "with the guard's factor", color("blue"), { yaxis: "y3", line: { width: 2 } }));
  if (hasLoss) {
    const isLog = scale === "log" && curves.loss.every((value) => value === null || value > 0);
    const own = { domain: [lossBottom, lossTop], title: { text: "loss", standoff: 8 }, anchor: "x" };
    const range = sharedRange(DATA.runs, "loss", isLog);
    layout.yaxis = isLog ? logAxis(range, own) : axis({ ...own, range, nticks: 7 });
    data.push(line(x, pick(curves.loss), "loss", color("blue"), { line: { width: 1.7 } }));
    const acts = shown.filter((mark) => !["told", "not_done"].includes(mark.outcome));
    if (acts.length <= MOST_ON_CURVE) data.push(...markTraces(acts, (mark) => nearest(curves.step, curves.loss, mark.step), "y", 9));
  }
  if (lanes.length) {
    layout.yaxis2 = axis({
      domain: [1 - heights.lanes / total, 1], tickvals: lanes.map((_, i) => i), ticktext: lanes.map((name) => plain(shortened(name, innerWidth < 640 ? 16 : 24))),
      range: [lanes.length - 0.4, -0.6], fixedrange: true, zeroline: false, ticks: "", anchor: "x",
    });
    data.push(...markTraces(shown, (mark) => lanes.indexOf(mark.diagnosis), "y2", 10));
  }
  return { data, layout, height: total + 46 };
}

function lossChart(view, rows, openRow) {
  const marks = marksOf(rows);
  const values = DATA.runs.flatMap((run) => run.curves.loss);
  let scale = logOrNot(values);
  const figure = chart(view, {
    label: "Loss and learning rate over the steps, with what the guard found and did. Arrow keys move between its marks.",
    build: () => lossFigure(view, marks, scale), isTimed: true, follows: marks.length > MOST_MARKS || view.isThinned ? ["span"] : [],
    onClick: (points) => {
      const point = points.find((one) => one.customdata !== undefined);
      if (point) openRow(point.customdata);
    },
  });
  const host = figure.querySelector(".chart");
  walkable(host, marks, openRow);
  const positive = values.every((value) => value === null || value > 0) && values.some((value) => value !== null);
  const scales = positive ? choice("Loss axis", [["log", "logarithmic"], ["linear", "linear"]], scale, (value) => { scale = value; host.redraw(); }) : null;
  return el("div", {}, controls(spanChoice(view), scales), outcomeLegend(rows), figure);
}

// With the keyboard: left and right go from mark to mark, Enter opens its row.
function walkable(host, marks, openRow) {
  if (!marks.length) return;
  const ordered = [...marks].sort((a, b) => a.step - b.step);
  let place = -1;
  host.tabIndex = 0;
  host.setAttribute("role", "application");
  host.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) {
      place = Math.min(Math.max(place + move, 0), ordered.length - 1);
      const mark = ordered[place];
      host.draw();
      showMark(host, mark);
      announce(`${place + 1} of ${ordered.length}. ${markText(mark).replaceAll("<br>", ". ")}`);
      event.preventDefault();
    } else if (event.key === "Enter" && place >= 0) {
      openRow(ordered[place].rows[0].place);
      event.preventDefault();
    }
  });
}

function showMark(host, mark) {
  host.data.forEach((trace, curveNumber) => {
    if (trace.yaxis !== "y2") return;
    const pointNumber = (trace.customdata ?? []).indexOf(mark.rows[0].place);
    if (pointNumber >= 0) Plotly.Fx.hover(host, [{ curveNumber, pointNumber }], ["xy2"]);
  });
}

function spanChoice(view) {
  const [first, last] = view.whole;
  const inputs = ["from", "to"].map((word, end) => {
    const input = el("input", {
      type: "number", min: first, max: last, value: view.shownSpan[end],
      onchange: () => {
        const ends = inputs.map((one) => Number(one.value));
        const [from, to] = [Math.max(first, Math.min(...ends)), Math.min(last, Math.max(...ends))];
        view.set("span", from <= first && to >= last ? null : [from, to]);
      },
    });
    return input;
  });
  view.on("span", () => inputs.forEach((input, end) => (input.value = view.shownSpan[end])));
  return [
    el("label", {}, "Steps from", inputs[0]), el("label", {}, "to", inputs[1]),
    el("button", { type: "button", onclick: () => view.set("span", null) }, "Whole run"),
  ];
}

function normFigure(view) {
  const { curves, alarm } = view.run;
  const pick = (values) => view.drawnRows.map((i) => values[i]);
  const [x, median, norm, clip] = [curves.step, curves.median, curves.norm, curves.clip].map(pick);
  const times = (ratio) => median.map((value) => (value === null ? null : value * ratio));
  const band = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", connectgaps: false };
  const data = [
    { ...band, x, y: pick(curves.low) }, { ...band, x, y: pick(curves.high), fill: "tonexty", fillcolor: color("sky", 0.25) },
    line(x, median, "usual", color("sky"), { line: { width: 1.2 } }),
  ];
  data.push(line(x, norm.map((value) => (isPositive(value) ? value : null)), "gradient norm", color("blue"), { line: { width: x.length > 2000 ? 1 : 1.6 } }));
  alarm.ratios.forEach((ratio, i) => data.push(line(x, times(ratio), `${number(ratio)} times the usual`, color(i ? "red" : "orange"), { line: { width: 1.4, dash: i ? "solid" : "dash" } })));
  const clipped = x.map((_, i) => i).filter((i) => clip[i] !== null && clip[i] < 1 && isPositive(norm[i]));
  if (clipped.length) {
    data.push({
      x: clipped.map((i) => x[i]), y: clipped.map((i) => norm[i] * clip[i]), mode: "markers", name: "after clipping",
      marker: { color: color("green"), size: 4, symbol: "circle-open" }, hovertemplate: "step %{x}<br>clipped to %{y:.4~g}<extra></extra>",
    });
  }
  const range = sharedRange(DATA.runs, "norm", true) ?? [-1, 1];
  const highest = times(Math.max(1, ...alarm.ratios)).filter(isPositive).reduce((a, b) => Math.max(a, b), 0);
  if (highest > 0) range[1] = Math.max(range[1], Math.min(Math.log10(highest) + 0.15, range[1] + 2.5));
  const shapes = alarm.clip === null ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: alarm.clip, y1: alarm.clip, line: { color: color("green"), dash: "dot", width: 1.4 } }];
  if (curves.odd.length) {
    data.push({
      x: curves.odd, y: curves.odd.map(() => 10 ** (range[1] - 0.02 * (range[1] - range[0]))), mode: "markers", name: "not finite",
      marker: { color: color("red"), size: 9, symbol: "triangle-up" }, hovertemplate: "step %{x}<br>the gradient was not finite<extra></extra>",
    });
  }
  return {
    data, height: 330,
    layout: { margin: { l: 62, r: 14, t: 8, b: 38 }, shapes, xaxis: axis({ title: { text: "step", standoff: 4 } }), yaxis: logAxis(range, { title: { text: "gradient norm" } }) },
  };
}

function normChart(view) {
  const { alarm, curves } = view.run;
  const entry = (ink, text, dash = "solid") => el("span", {}, swatch(ink, dash), text);
  const legend = el(
    "div", { class: "legend" }, entry("blue", "global norm, before any clip"), entry("sky", `usual: median of ${alarm.window} steps, and where nearly all lie`, "band"),
    alarm.ratios.map((ratio, i) => entry(i ? "red" : "orange", i ? `${number(ratio)}×: alarm at once` : `${number(ratio)}×: alarm if it stands out twice`, i ? "solid" : "dash")),
    alarm.clip === null ? null : entry("green", `clipped to ${number(alarm.clip)} at every step`, "dash"),
    curves.odd.length ? el("span", {}, el("i", { class: "tone-bad" }, "▲"), "not finite") : null,
  );
  return el("div", {}, legend, chart(view, { label: "Global gradient norm over the steps, with its usual range and the alarm thresholds", build: () => normFigure(view), isTimed: true, follows: view.isThinned ? ["span"] : [] }));
}

function swatch(ink, kind) {
  const style = kind === "band" ? `background:color-mix(in srgb, var(--${ink}) 35%, transparent);height:0.7em;border-top:2px solid var(--${ink})` : `border-top:2.5px ${kind === "dash" ? "dashed" : "solid"} var(--${ink})`;
  const node = el("i");
  node.style.cssText = `display:inline-block;width:1.4em;${style}`;
  return node;
}
