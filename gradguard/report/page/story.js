"use strict";
// What happened, episode by episode.

function chainOf(chain) {
  const told = new Set();
  const nodes = [];
  chain.forEach(({ diagnosis, step, follows }, place) => {
    if (place) nodes.push(el("span", { class: "arrow" }, told.has(follows) ? "→" : "+"));
    nodes.push(el("span", { title: `first found at step ${step}` }, diagnosis));
    told.add(diagnosis);
  });
  return el("span", { class: "chain" }, nodes);
}

function episodeCard(episode, view, showSpan) {
  const { first, last, chain, before, where, more, place, suspect, did, worked, advice, alike } = episode;
  const layers = where.map((name, place) => [place ? ", " : "", el("code", {}, breakable(name))]);
  const link = layerLink(view, where);
  const done = did.map(({ remedy, count: times, summary }, place) => [
    place ? "; " : "",
    el("b", {}, remedy),
    times > 1 ? ` ${number(times)}×` : "",
    summary ? ` (${times > 1 ? "first: " : ""}${summary})` : "",
  ]);
  const point = (name, ...content) => [el("dt", {}, name), el("dd", {}, ...content)];
  return el(
    "li",
    { class: `episode${episode.critical ? " critical" : ""}` },
    el(
      "header",
      {},
      chainOf(chain),
      el("span", { class: "when" }, spanOfSteps(first, last)),
      el("button", { type: "button", class: "link", onclick: () => showSpan(first, last) }, "show in the charts"),
    ),
    episode.happened ? el("p", { class: "happened" }, episode.happened) : null,
    el(
      "dl",
      { class: "points" },
      before ? point("Beforehand", before) : [],
      where.length || place || suspect
        ? point("Where", where.length ? layers : place || suspect, more ? ` and ${number(more)} more` : "", link)
        : [],
      chain.length > 1
        ? point(
            "Then",
            chain
              .slice(1)
              .map(
                ({ diagnosis, step, follows }, place) =>
                  `${place ? "; " : ""}${diagnosis} at step ${number(step)}${follows ? ` (follows from ${follows})` : ""}`,
              )
              .join(""),
          )
        : [],
      point("The guard", did.length ? done : "did nothing"),
      point(
        "Did it work",
        el("span", { class: `tone-${worked.tone}` }, el("b", {}, `${ANSWER_SIGN[worked.tone]} `)),
        worked.text,
      ),
      advice ? point("What to do", advice) : [],
      alike
        ? point(
            "Again",
            `${count(alike.count, "more time", "more times")} in the same way, last at step ${number(alike.last)}`,
          )
        : [],
    ),
  );
}

function layerLink(view, where) {
  const place = view.run.layers.indexOf(where[0]);
  if (place < 0) return null;
  return [
    " ",
    el(
      "button",
      {
        type: "button",
        class: "link",
        onclick: () => {
          view.set("layer", place);
          document.getElementById("layer").scrollIntoView();
        },
      },
      "its statistics",
    ),
  ];
}

function story(view, showSpan) {
  const { run } = view;
  if (!run.facts.steps && !run.episodes.length) {
    return el(
      "div",
      { class: "card" },
      el("h3", {}, "Nothing to show yet"),
      el("p", {}, "The guard was attached, but no step was recorded. Usual reasons:"),
      el(
        "ul",
        {},
        [
          "the run ended, or failed, before the first optimizer.step()",
          "the loop steps another optimizer than the one that was handed to gradguard.attach",
          "the run has just begun: write the report again later",
        ].map((text) => el("li", {}, text)),
      ),
    );
  }
  if (!run.episodes.length) {
    return el(
      "div",
      { class: "card" },
      el(
        "p",
        {},
        "No diagnosis raised an alarm. The charts below show what was watched: how far the run kept from the thresholds, how even the layers are, and how large its updates were.",
      ),
    );
  }
  const list = el(
    "ol",
    { class: "episodes" },
    run.episodes.map((episode) => episodeCard(episode, view, showSpan)),
  );
  const rest = run.untold
    ? el(
        "p",
        { class: "lead" },
        `${count(run.untold, "more episode", "more episodes")}, less telling than these: see the table of interventions.`,
      )
    : null;
  return el("div", {}, list, rest);
}
