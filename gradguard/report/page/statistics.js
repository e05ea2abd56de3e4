"use strict";
// The statistics of layers, as the charts below take them.

const STATISTICS = {
  norm: "gradient norm",
  mean: "mean",
  std: "standard deviation",
  max: "largest entry",
  zero_ratio: "share of zeros",
};

function sketchesOf(run) {
  const found = { norm: sketchOf(run.norms) };
  for (const name of Object.keys(run.probed)) found[name] = sketchOf(run.probed[name]);
  return Object.fromEntries(Object.entries(found).filter(([, sketch]) => sketch));
}

const quantile = (sorted, share) => {
  const place = (sorted.length - 1) * share;
  const [low, high] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return low + (high - low) * (place - Math.floor(place));
};

// Layers whose usual value lies below the others behind a gap of several orders of magnitude, at most half of them: so
// it is where a gradient is 0 but for rounding. They would take the better part of every scale.
const GAP_DECADES = 2.5;
function farBelow(usual) {
  const known = usual
    .map((value, layer) => ({ value: Math.log10(value), layer }))
    .filter(({ value }) => value > -Infinity);
  known.sort((a, b) => a.value - b.value);
  for (let i = known.length >> 1; i > 0; i--) {
    if (known[i].value - known[i - 1].value > GAP_DECADES) return new Set(known.slice(0, i).map(({ layer }) => layer));
  }
  return new Set();
}

function usualOf(sketch, stretches) {
  return Array.from({ length: sketch.series }, (_, layer) => {
    const values = stretches.map((i) => sketch.at(2, i, layer)).filter((value) => value > 0 && value < Infinity);
    return values.length ? quantile(Float64Array.from(values).sort(), 0.5) : NaN;
  });
}

const everyStretch = (sketch) => sketch.first.map((_, i) => i);

function farBelowNote(layers, far, how) {
  if (!far.size) return null;
  const names = [...far]
    .sort((a, b) => a - b)
    .slice(0, 4)
    .map((layer, place) => [place ? ", " : "", el("code", {}, breakable(layers[layer]))]);
  const more = far.size > 4 ? ` and ${number(far.size - 4)} more` : "";
  const verb = far.size > 1 ? "lie" : "lies";
  return el(
    "p",
    { class: "note" },
    names,
    `${more} ${verb} orders of magnitude below the rest, as a bias before a normalisation does, whose gradient is 0 but for rounding. ${how}`,
  );
}
