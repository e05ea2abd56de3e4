"use strict";
// Loss and learning rate over the steps, with a mark for everything that was found.

const LANE = 24;
const MOST_ON_CURVE = 250; // more marks would hide the curve
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
    const isOpen = isOpenSymbol(symbol);
    traces.push({
      x: own.map((mark) => mark.step),
      y: own.map(yOf),
      yaxis,
      mode: "markers",
      cliponaxis: false,
      marker: {
        color: color(ink),
        size: isDense ? 6 : size,
        symbol,
        line: { color: isOpen ? color(ink) : color("card"), width: isOpen ? 1.5 : isDense ? 0 : 1 },
      },
      text: own.map((mark) => mark.text ?? markText(mark)),
      hovertemplate: "%{text}<extra></extra>",
      customdata: own.map((mark) => mark.rows[0]?.place),
    });
  }
  return traces;
}

// As many lanes in every run, so that what stands side by side has the same height.
const numLanes = () => Math.max(...views.map((view) => new Set(view.run.actions.rows.map((row) => row[1])).size));

function rateAxis(extra) {
  const rates = DATA.runs.flatMap((run) => [...run.curves.lr, ...run.curves.effective]).filter(isPositive);
  const isLog = rates.length && logOrNot(rates) === "log";
  if (!isLog) {
    const range = [0, rates.reduce((a, b) => Math.max(a, b), 0) * 1.06 || 1];
    return axis({ range, exponentformat: "e", nticks: 4, ...extra });
  }
  const range = [
    Math.log10(rates.reduce((a, b) => Math.min(a, b))) - 0.2,
    Math.log10(rates.reduce((a, b) => Math.max(a, b))) + 0.2,
  ];
  return { ...logAxis(range, extra), dtick: range[1] - range[0] > 3 ? 2 : 1 };
}

// Heights of what lies below each other, in pixels.
const GAP = 16;
function lossHeights({ curves }) {
  const heights = { lanes: numLanes() * LANE, loss: curves.loss.some((value) => value !== null) ? 250 : 0, rate: 110 };
  const parts = Object.values(heights).filter(Boolean);
  return { ...heights, total: parts.reduce((a, b) => a + b) + GAP * (parts.length - 1) };
}
const hasFactor = ({ curves }) => curves.effective.some((value, i) => value !== curves.lr[i]);

function lossFigure(view, marks, scale) {
  const { curves } = view.run;
  const lanes = [...new Set(marks.map((mark) => mark.diagnosis))];
  const labels = lanes.map((name) => shortened(name, innerWidth < 640 ? 16 : 24));
  const shown = thinned(marks, view.shownSpan);
  const heights = lossHeights(view.run);
  const { total } = heights;
  const rateTop = heights.rate / total;
  const lossBottom = (heights.rate + GAP) / total;
  const lossTop = (heights.rate + GAP + heights.loss) / total;
  const data = [];
  const pick = (values) => view.drawnRows.map((i) => values[i]);
  const x = pick(curves.step);
  const layout = {
    margin: { l: Math.max(78, labelWidth(labels)), r: 14, t: 9, b: 44 },
    xaxis: axis({ title: { text: "step", standoff: 4 }, anchor: "y3" }),
    yaxis3: rateAxis({ domain: [0, rateTop], title: { text: "learning rate", standoff: 8 }, anchor: "x" }),
  };
  const guarded = hasFactor(view.run);
  data.push(
    line(x, pick(curves.lr), "learning rate", color("grey"), {
      yaxis: "y3",
      line: { dash: guarded ? "dot" : "solid", width: guarded ? 1.6 : 2 },
    }),
  );
  if (guarded)
    data.push(
      line(x, pick(curves.effective), "with the guard's factor", color("blue"), { yaxis: "y3", line: { width: 2 } }),
    );
  if (heights.loss) {
    const isLog = scale === "log" && curves.loss.every((value) => value === null || value > 0);
    const own = { domain: [lossBottom, lossTop], title: { text: "loss", standoff: 8 }, anchor: "x" };
    const range = sharedRange(DATA.runs, "loss", isLog);
    layout.yaxis = isLog ? logAxis(range, own) : axis({ ...own, range, nticks: 7 });
    data.push(line(x, pick(curves.loss), "loss", color("blue"), { line: { width: 1.7 } }));
    const acts = shown.filter((mark) => !["told", "not_done"].includes(mark.outcome));
    if (acts.length <= MOST_ON_CURVE)
      data.push(...markTraces(acts, (mark) => nearest(curves.step, curves.loss, mark.step), "y", 9));
  }
  if (lanes.length) {
    layout.yaxis2 = axis({
      domain: [1 - heights.lanes / total, 1],
      tickvals: lanes.map((_, i) => i),
      ticktext: labels.map(plain),
      range: [numLanes() - 0.4, -0.6],
      fixedrange: true,
      automargin: false,
      zeroline: false,
      ticks: "",
      anchor: "x",
    });
    data.push(...markTraces(shown, (mark) => lanes.indexOf(mark.diagnosis), "y2", 10));
  }
  return { data, layout };
}

function lossChart(view, rows, openRow) {
  const marks = marksOf(rows);
  const values = DATA.runs.flatMap((run) => run.curves.loss);
  let scale = logOrNot(values);
  const figure = chart(view, {
    label:
      "Loss and learning rate over the steps, with what the guard found and did. Arrow keys move between its marks.",
    height: () => lossHeights(view.run).total + BELOW,
    build: () => lossFigure(view, marks, scale),
    isTimed: true,
    isFirst: true,
    follows: marks.length > MOST_MARKS || view.isThinned ? ["span"] : [],
    onClick: markOpener(openRow),
  });
  const host = figure.querySelector(".chart");
  walkable(host, marks, openRow);
  const positive = values.every((value) => value === null || value > 0) && values.some((value) => value !== null);
  const scales = positive
    ? choice(
        "Loss axis",
        [
          ["log", "logarithmic"],
          ["linear", "linear"],
        ],
        scale,
        (value) => {
          scale = value;
          host.redraw();
        },
      )
    : null;
  const outcomes = outcomeSigns(rows.map((row) => row.outcome));
  const rates = hasFactor(view.run)
    ? [
        [swatch("grey", { dash: "dot" }), "learning rate as scheduled"],
        [swatch("blue"), "with the guard's factor"],
      ]
    : [];
  return el("div", {}, controls(spanChoice(view), scales), legend(outcomes, rates), figure);
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
  host.data?.forEach((trace, curveNumber) => {
    if (trace.yaxis !== "y2") return;
    const pointNumber = (trace.customdata ?? []).indexOf(mark.rows[0].place);
    if (pointNumber >= 0) Plotly.Fx.hover(host, [{ curveNumber, pointNumber }], ["xy2"]);
  });
}
