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
