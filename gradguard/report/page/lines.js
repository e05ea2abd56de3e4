"use strict";
// What charts over the steps share: lines, their ranges, and the choice of the span.

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
    x,
    y,
    name,
    mode: "lines",
    connectgaps: false,
    hovertemplate: `step %{x}<br>${name} %{y:.4~g}<extra></extra>`,
    ...extra,
    line: { color: ink, width: 1.6, ...extra.line },
  };
}

function spanChoice(view) {
  const [first, last] = view.whole;
  const inputs = ["from", "to"].map((word, end) => {
    const input = el("input", {
      type: "number",
      min: first,
      max: last,
      value: view.shownSpan[end],
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
    el("label", {}, "Steps from", inputs[0]),
    el("label", {}, "to", inputs[1]),
    el("button", { type: "button", onclick: () => view.set("span", null) }, "Whole run"),
  ];
}
