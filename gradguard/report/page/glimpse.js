"use strict";
// A first picture of a chart, until the library that draws it has been read: lines, points and axes of the same figure.

const SUPERSCRIPT = { "-": "⁻", ...Object.fromEntries([..."⁰¹²³⁴⁵⁶⁷⁸⁹"].map((sign, digit) => [digit, sign])) };
function power(exponent) {
  if (exponent === 0 || exponent === 1) return String(10 ** exponent);
  return `10${[...String(exponent)].map((sign) => SUPERSCRIPT[sign]).join("")}`;
}

// Numbers as the library writes them beside an axis whose largest is `high`.
function tickText(value, high) {
  const exponent = Math.floor(Math.log10(high));
  if (Math.abs(exponent) <= 3 || !value) return String(Number(value.toPrecision(6)));
  if (exponent < 0) return Number(value.toPrecision(6)).toExponential().replace("e-", "e−");
  const thousands = Math.round((exponent - 1) / 3);
  return `${Number((value / 1000 ** thousands).toPrecision(6))}${["", "k", "M", "B", "T"][thousands] ?? "?"}`;
}

// Places on an axis, in its own numbers (of a logarithmic one: exponents), and their labels.
function ticksOf({ type, range, tickvals, ticktext, dtick, nticks = 6 }) {
  if (tickvals) return tickvals.map((at, i) => [at, unescaped(ticktext[i])]);
  const [low, high] = [Math.min(...range), Math.max(...range)];
  const ticks = [];
  if (type === "log") {
    const each = typeof dtick === "number" ? dtick : 1;
    for (let exponent = Math.floor(low / each) * each; exponent <= high; exponent += each) {
      ticks.push([exponent, power(exponent)]);
      if (typeof dtick !== "number") for (const digit of [2, 5]) ticks.push([exponent + Math.log10(digit), `${digit}`]);
    }
  } else {
    const rough = (high - low) / nticks;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const each = unit * [1, 2, 5, 10].find((times) => times * unit >= rough);
    for (let at = Math.ceil(low / each); at * each <= high; at++)
      ticks.push([at * each, tickText(at * each, Math.max(-low, high))]);
  }
  return ticks.filter(([at]) => at >= low && at <= high);
}

// Draws a figure as `build` returns it; axes that have no range are left out, and so is what lies on them.
function glimpse(host, { data, layout, height }) {
  const [width, family] = [host.clientWidth, getComputedStyle(document.body).fontFamily];
  const canvas = el("canvas", { class: "glimpse", "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [width, height].map((size) => Math.round(size * devicePixelRatio));
  pen.scale(devicePixelRatio, devicePixelRatio);
  pen.textBaseline = "middle";
  const { l, r, t, b } = layout.margin;
  const [inner, outer] = [width - l - r, height - t - b];
  const side = (axis) => {
    const [bottom, top] = (axis.domain ?? [0, 1]).map((share) => t + outer * (1 - share));
    const [low, high] = axis.range;
    return { ...axis, bottom, top, at: (value) => bottom + ((value - low) / (high - low)) * (top - bottom) };
  };
  const sides = Object.fromEntries(
    Object.entries(layout)
      .filter(([key, axis]) => key.startsWith("yaxis") && axis.range)
      .map(([key, axis]) => [key.replace("axis", ""), side(axis)]),
  );
  const [first, last] = layout.xaxis.range;
  const xOf = (step) => l + ((step - first) / (last - first)) * inner;
  const rule = (x0, y0, x1, y1) => {
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
  };

  pen.strokeStyle = color("grid");
  pen.fillStyle = color("text");
  pen.textAlign = "center";
  pen.font = `12px ${family}`;
  for (const [step, text] of ticksOf({ nticks: Math.max(3, inner / 90), ...layout.xaxis })) {
    for (const { top, bottom } of Object.values(sides)) rule(xOf(step), top, xOf(step), bottom);
    pen.fillText(text, xOf(step), height - b + 14);
  }
  const title = `14px ${family}`;
  pen.font = title;
  pen.fillText(layout.xaxis.title.text, l + inner / 2, height - b + 31);
  for (const axis of Object.values(sides)) {
    const ticks = ticksOf(axis);
    pen.font = `12px ${family}`;
    pen.textAlign = "right";
    for (const [value, text] of ticks) {
      rule(l, axis.at(value), l + inner, axis.at(value));
      pen.fillText(text, l - (axis.ticks ? 7 : 3), axis.at(value));
    }
    if (!axis.title) continue;
    const room = Math.max(0, ...ticks.map(([, text]) => pen.measureText(text).width));
    pen.save();
    pen.translate(l - 7 - room - 15, (axis.top + axis.bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.font = title;
    pen.textAlign = "center";
    pen.fillText(axis.title.text, 0, 0);
    pen.restore();
  }
  let before = []; // places of the line before, up to which a band reaches
  for (const trace of data) {
    const axis = sides[trace.yaxis ?? "y"];
    if (!axis) continue;
    const yOf = (value) => axis.at(axis.type === "log" ? Math.log10(value) : value);
    pen.save();
    pen.beginPath();
    pen.rect(l, axis.top - (trace.cliponaxis === false ? 9 : 0), inner, axis.bottom - axis.top + 9);
    pen.clip();
    before = drawTrace(pen, trace, xOf, yOf, before);
    pen.restore();
  }
  host.replaceChildren(canvas);
}

function drawTrace(pen, { x, y, mode, line, marker, fill, fillcolor }, xOf, yOf, before) {
  const places = x.map((step, i) => (y[i] === null || Number.isNaN(y[i]) ? null : [xOf(step), yOf(y[i])]));
  if (mode === "markers") {
    const outlined = new Path2D(symbolPath(marker.symbol, marker.size));
    const outline = { width: 0, color: marker.color, ...marker.line };
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [marker.color, outline.color, outline.width];
    for (const [left, top] of places.filter(Boolean)) {
      pen.save();
      pen.translate(left, top);
      if (!isOpenSymbol(marker.symbol)) pen.fill(outlined);
      if (outline.width) pen.stroke(outlined);
      pen.restore();
    }
    return before;
  }
  if (fill) {
    const both = places.map((place, i) => [place, before[i]]).filter(([a, b]) => a && b);
    pen.beginPath();
    both.forEach(([place]) => pen.lineTo(...place));
    both.reverse().forEach(([, place]) => pen.lineTo(...place));
    pen.fillStyle = fillcolor;
    pen.fill();
  }
  if (!line.width) return places;
  pen.beginPath();
  let isDown = false;
  for (const place of places) {
    if (place) pen[isDown ? "lineTo" : "moveTo"](...place);
    isDown = place !== null;
  }
  pen.strokeStyle = line.color;
  pen.lineWidth = line.width;
  pen.lineJoin = "bevel";
  pen.setLineDash({ dot: [line.width, 3], dash: [9, 7] }[line.dash] ?? []);
  pen.stroke();
  return places;
}
