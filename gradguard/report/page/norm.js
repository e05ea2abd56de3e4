"use strict";
// The global gradient norm with what the guard took for usual, from where on it would alarm, and what it did then.

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

// As marks: steps above the lowest threshold, with what was done at each of them, or why nothing was; and the other
// steps at which the guard acted on the size of the gradient.
const LOOKED_AT = "exploding_gradient";
const isTold = (row) => row.outcome === "told";
const isDone = (row) => row.outcome !== "not_done" && !isTold(row);
function peaksOf({ alarm, curves }, rows) {
  if (!alarm.ratios.length) return [];
  const acted = new Set(rows.filter((row) => row.diagnosis === LOOKED_AT && isDone(row)).map((row) => row.step));
  const isAbove = (i) => curves.norm[i] > alarm.ratios[0] * (curves.median[i] ?? Infinity);
  const isMarked = (i) => isPositive(curves.norm[i]) && (isAbove(i) || acted.has(curves.step[i]));
  const places = curves.step.map((_, i) => i).filter(isMarked);
  const found = new Map(places.map((i) => [curves.step[i], []]));
  for (const row of rows) found.get(row.step)?.push(row);
  return places.map((i) => {
    const [step, norm, usual] = [curves.step, curves.norm, curves.median].map((column) => column[i]);
    const answer = answerTo(found.get(step));
    return { step, norm, usual, ...answer, kind: isAbove(i) ? answer.kind : "else" };
  });
}

const NO_ALARM = "too early in the run, a single one, or within the spread of the steps before";
function answerTo(rows) {
  const done = rows.filter(isDone);
  const own = rows.filter((row) => row.diagnosis === LOOKED_AT);
  const [acted, told, held] = [isDone, isTold, (row) => row.outcome === "not_done"].map((is) => own.find(is));
  if (acted) return { kind: "own", outcome: acted.outcome, rows: [acted], said: `${acted.remedy}: ${acted.summary}` };
  if (done.length) {
    const [row] = done.sort((a, b) => byRank(a.outcome, b.outcome));
    const why = held ? `; its own rule: ${held.summary}` : "";
    const said = `another rule went first, against ${row.diagnosis}: ${row.remedy}${why}`;
    return { kind: "other", outcome: row.outcome, rows: [row], said, reason: row.diagnosis };
  }
  if (told) return { kind: "told", outcome: told.outcome, rows: [told], said: "nothing was changed" };
  if (held) {
    const said = `not acted on: ${held.summary}`;
    return { kind: "held", outcome: held.outcome, rows: [held], said, reason: held.summary };
  }
  return { kind: "none", outcome: "not_done", rows: [], said: `no alarm: ${NO_ALARM}` };
}

function peakText({ step, norm, usual, said, outcome }) {
  const verdict = outcome === "not_done" ? "" : outcomeOf(outcome).text;
  const times = usual ? `, ${number(norm / usual, 3)} times the usual` : "";
  return [`step ${step}: gradient norm ${number(norm)}${times}`, ...wrapped(said, 70), verdict]
    .filter(Boolean)
    .map(plain)
    .join("<br>");
}

// How many steps stood above a threshold, and what came of them, in a sentence.
function peakSentence(peaks, { curves }) {
  if (!peaks.length) return null;
  const of = (kind) => peaks.filter((peak) => peak.kind === kind);
  const reasons = (some) => {
    const counts = new Map();
    for (const { reason } of some) counts.set(reason, (counts.get(reason) ?? 0) + 1);
    const most = [...counts].sort((a, b) => b[1] - a[1]);
    if (most.length === 1) return most[0][0];
    const told = most.slice(0, 3).map(([reason, times]) => `${number(times)}× ${reason}`);
    return told.join(", ") + (most.length > 3 ? ", …" : "");
  };
  const [own, other, told, held, none, rest] = ["own", "other", "told", "held", "none", "else"].map(of);
  const parts = [
    own.length && `on ${number(own.length)} the guard acted on that`,
    other.length && `on ${number(other.length)} another rule went first (${reasons(other)})`,
    held.length && `on ${number(held.length)} nothing was done (${reasons(held)})`,
    told.length && `on ${number(told.length)} it told of it and changed nothing`,
    none.length && `${number(none.length)} raised no alarm (${NO_ALARM})`,
  ].filter(Boolean);
  const where = curves.is_whole ? "" : " of those drawn";
  const above = count(peaks.length - rest.length, "step") + where;
  return [
    parts.length ? `${above} rose above a threshold: ${parts.join(", ")}.` : "",
    rest.length
      ? `On ${count(rest.length, parts.length ? "other step" : "step")} the guard acted on another sign of ${LOOKED_AT}.`
      : "",
    "Each has a mark: point at it to read what came of it, and why.",
  ]
    .filter(Boolean)
    .join(" ");
}

function normFigure(view, peaks) {
  const { curves, alarm } = view.run;
  const pick = (values) => view.drawnRows.map((i) => values[i]);
  const [x, median, norm, clip] = [curves.step, curves.median, curves.norm, curves.clip].map(pick);
  const times = (ratio) => median.map((value) => (value === null ? null : value * ratio));
  const band = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", connectgaps: false };
  const range = normRange();
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
      marker: { color: color("green"), size: 4, symbol: "square" },
      hovertemplate: "step %{x}<br>clipped to %{y:.4~g}<extra></extra>",
    });
  }
  if (alarm.clip !== null)
    data.push(
      line(view.whole, [alarm.clip, alarm.clip], "clipped to", color("green"), { line: { dash: "dot", width: 1.4 } }),
    );
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
  data.push(...markTraces(thinned(peaks, view.shownSpan), (peak) => peak.norm, "y", 9));
  return {
    data,
    layout: {
      margin: { l: 66, r: 14, t: 8, b: 44 },
      xaxis: axis({ title: { text: "step", standoff: 4 } }),
      yaxis: logAxis(range, { title: { text: "gradient norm", standoff: 8 } }),
    },
  };
}

function normLegend({ alarm, curves }, peaks) {
  const isClipped = curves.clip.some((value) => value !== null && value < 1);
  return legend(
    [[swatch("blue"), "global norm, before any clip"]],
    [[swatch("sky", { width: 1.2, band: 0.25 }), `usual: median of ${alarm.window} steps, and where nearly all lie`]],
    alarm.ratios.map((ratio, i) => [
      swatch(i ? "red" : "orange", { dash: i ? null : "dash" }),
      `${number(ratio)}× usual: ${i ? "one step is an alarm" : "two steps of three are an alarm"}`,
    ]),
    isClipped && [[swatch("green", { dash: "dot", width: 4 }), "after clipping"]],
    alarm.clip !== null && [[swatch("green", { dash: "dot" }), `clipped to ${number(alarm.clip)} at every step`]],
    curves.odd.length && [[symbolSign("triangle-up", "red"), "NaN or Inf"]],
    outcomeSigns(peaks.map((peak) => peak.outcome)),
  );
}

function normChart(view, rows, openRow) {
  const { run } = view;
  const peaks = peaksOf(run, rows).map((peak) => ({ ...peak, text: peakText(peak) }));
  return el(
    "div",
    {},
    normLegend(run, peaks),
    chart(view, {
      label:
        "Global gradient norm over the steps, with its usual range, the alarm thresholds, and what rose above them",
      caption: peakSentence(peaks, run),
      height: () => 330,
      build: () => normFigure(view, peaks),
      isTimed: true,
      isFirst: true,
      follows: view.isThinned ? ["span"] : [],
      onClick: markOpener(openRow),
    }),
  );
}
