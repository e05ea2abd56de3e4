"use strict";
// What is told in words: the answers, the story, what helped, the policy, the environment.

const ANSWER_SIGN = { good: "✓", bad: "✕", mixed: "!", calm: "●", open: "○" };

function hero(run) {
  const { facts } = run;
  const parts = [
    [facts.status, ""], [number(facts.steps), facts.steps === 1 ? " step" : " steps"], [duration(facts.seconds), ""],
    [number(facts.layers), " parameter tensors watched"], [`mode ${facts.mode}`, ""],
  ];
  return el(
    "div", { class: "card hero" },
    el("p", { class: "run-title" }, run.title),
    el(DATA.runs.length === 1 ? "h1" : "h3", {}, run.headline),
    el("p", { class: "facts-line" }, parts.map(([value, noun]) => el("span", {}, el("b", {}, value), noun))),
    run.answers.length ? el("div", { class: "answers" }, run.answers.map(({ question, answer, detail, tone }) => el(
      "div", { class: `answer ${tone}` }, el("p", { class: "question" }, el("span", { class: `tone-${tone}`, "aria-hidden": "true" }, `${ANSWER_SIGN[tone]} `), question),
      el("p", { class: "reply" }, breakable(answer)), el("p", { class: "detail" }, breakable(shortened(detail, 150))),
    ))) : null,
    closest(run),
    run.notes.length ? el("div", {}, el("h3", {}, "Notes"), el("ul", { class: "notes" }, run.notes.map((note) => el("li", {}, note)))) : null,
  );
}

function closest({ closest, alarm, episodes }) {
  if (!closest || episodes.length || !alarm.ratios.length) return null;
  const text = `Closest call: at step ${number(closest.step)} the gradient norm was ${number(closest.ratio, 2)} times its usual size; the guard looks closer from ${number(alarm.ratios[0])} times on.`;
  return el("p", { class: "facts-line" }, text);
}

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
  const { first, last, chain, before, where, more, suspect, did, worked, advice, alike } = episode;
  const layers = where.map((name, place) => [place ? ", " : "", el("code", {}, breakable(name))]);
  const link = layerLink(view, where);
  const done = did.map(({ remedy, count: times, summary }, place) => [
    place ? "; " : "", el("b", {}, remedy), times > 1 ? ` ${number(times)}×` : "", summary ? ` (${times > 1 ? "first: " : ""}${summary})` : "",
  ]);
  const point = (name, ...content) => [el("dt", {}, name), el("dd", {}, ...content)];
  return el(
    "li", { class: `episode${episode.critical ? " critical" : ""}` },
    el("header", {}, chainOf(chain), el("span", { class: "when" }, spanOfSteps(first, last)),
      el("button", { type: "button", class: "link", onclick: () => showSpan(first, last) }, "show in the charts")),
    el("p", { class: "happened" }, episode.happened),
    el("dl", { class: "points" },
      before ? point("Beforehand", before) : [],
      where.length || suspect ? point("Where", where.length ? layers : suspect, more ? ` and ${number(more)} more` : "", link) : [],
      chain.length > 1 ? point("Then", chain.slice(1).map(({ diagnosis, step, follows }, place) => `${place ? "; " : ""}${diagnosis} at step ${number(step)}${follows ? ` (follows from ${follows})` : ""}`).join("")) : [],
      point("The guard", did.length ? done : "did nothing"),
      point("Did it work", el("span", { class: `tone-${worked.tone}` }, el("b", {}, `${ANSWER_SIGN[worked.tone]} `)), worked.text),
      advice ? point("What to do", advice) : [],
      alike ? point("Again", `${count(alike.count, "more time", "more times")} in the same way, last at step ${number(alike.last)}`) : [],
    ),
  );
}

function layerLink(view, where) {
  const place = view.run.layers.indexOf(where[0]);
  if (place < 0) return null;
  return [" ", el("button", { type: "button", class: "link", onclick: () => { view.set("layer", place); document.getElementById("layer").scrollIntoView(); } }, "its statistics")];
}

function story(view, showSpan) {
  const { run } = view;
  if (!run.facts.steps && !run.episodes.length) {
    return el("div", { class: "card" }, el("h3", {}, "Nothing to show yet"), el("p", {}, "The guard was attached, but no step was recorded. Usual reasons:"),
      el("ul", {}, ["the run ended, or failed, before the first optimizer.step()", "the loop steps another optimizer than the one that was handed to gradguard.attach", "the run has just begun: write the report again later"].map((text) => el("li", {}, text))));
  }
  if (!run.episodes.length) {
    return el("div", { class: "card" }, el("p", {}, "No diagnosis raised an alarm. The charts below show what was watched: how far the run kept from the thresholds, how even the layers are, and how large its updates were."));
  }
  const list = el("ol", { class: "episodes" }, run.episodes.map((episode) => episodeCard(episode, view, showSpan)));
  const rest = run.untold ? el("p", { class: "lead" }, `${count(run.untold, "more episode", "more episodes")}, less telling than these: see the table of interventions.`) : null;
  return el("div", {}, list, rest);
}

const share = (value) => (value === null ? "–" : value >= 10 ? `×${number(value + 1, 3)}` : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(Math.round(value * 100))} %`);

function efficacyTable({ efficacy }) {
  if (!efficacy.length) return el("p", { class: "empty" }, "Nothing was done whose outcome could be judged.");
  const heads = ["found, and done", "times", "helped", "no effect", "worse", "not known", "loss change", "steps to recover"];
  const rows = [];
  let group = null;
  for (const row of efficacy) {
    if (row.diagnosis !== group) rows.push(el("tr", { class: "group" }, el("td", { colspan: heads.length }, row.diagnosis)));
    group = row.diagnosis;
    const numbers = [row.count, row.helped, row.no_effect, row.worse, row.unknown + row.waiting].map((value) => (value ? number(value) : "–"));
    const cells = [...numbers, share(row.loss_change), row.steps_to_recover === null ? "–" : number(Math.round(row.steps_to_recover))];
    rows.push(el("tr", { class: "inner" }, el("td", {}, breakable(row.remedy || "(left alone)")), cells.map((cell) => el("td", { class: "number" }, cell))));
  }
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head, i) => el("th", { scope: "col", class: i ? "number" : null }, head)))), el("tbody", {}, rows)));
}

function withheldTable({ withheld }) {
  if (!withheld.length) return null;
  const heads = ["found", "remedy", "why not", "times", "steps", "mostly in"];
  const rows = withheld.map(([diagnosis, remedy, reason, times, first, last, layer]) => el("tr", {}, el("td", {}, breakable(diagnosis)), el("td", {}, breakable(remedy || "–")), el("td", {}, reason), el("td", { class: "number" }, number(times)), el("td", {}, first === last ? number(first) : `${number(first)}–${number(last)}`), el("td", {}, breakable(layer || "–"))));
  return [el("h3", {}, "What was due and not done"), el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col", class: head === "times" ? "number" : null }, head)))), el("tbody", {}, rows)))];
}

function glossary() {
  const words = Object.assign({}, ...DATA.runs.map((run) => run.glossary));
  const names = Object.keys(words).sort();
  if (!names.length) return null;
  return el("div", { class: "card" }, el("dl", { class: "pairs" }, names.flatMap((name) => [el("dt", {}, el("code", {}, name)), el("dd", {}, words[name])])));
}

function rulesTable(rules) {
  const lines = rules.map(([name, when, act, ladder]) => el("tr", {}, el("td", {}, name), el("td", {}, when), el("td", {}, el("div", {}, act), ladder.map((rung) => el("div", {}, `↳ ${rung}`)))));
  return el("div", { class: "scroll" }, el("table", { class: "rules" }, el("thead", {}, el("tr", {}, ["rule", "when", "do"].map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, lines)));
}

function policyCard({ policy }) {
  const acting = policy.rules.filter(([, , , , onlyTells]) => !onlyTells);
  const telling = policy.rules.filter(([, , , , onlyTells]) => onlyTells);
  return el("div", {},
    acting.length ? rulesTable(acting) : el("p", { class: "empty" }, "No rule that acts: the guard measured, and recorded what it found."),
    telling.length ? el("details", {}, el("summary", {}, `${count(telling.length, "more rule")} that only ${telling.length === 1 ? "tells" : "tell"}`), rulesTable(telling)) : null,
    el("details", {}, el("summary", {}, "All of it, as YAML"), el("pre", {}, policy.yaml)));
}

function factsTable(rows) {
  return el("table", { class: "facts" }, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, value)))));
}

// Several runs beside each other, a fact a line.
function comparison() {
  const lines = [
    ["status", ({ facts }) => facts.status], ["steps", ({ facts }) => number(facts.steps)], ["time", ({ facts }) => duration(facts.seconds)],
    ["loss, first", ({ facts }) => number(facts.loss[0])], ["loss, at the end", ({ facts }) => number(facts.loss[1])], ["loss, lowest", ({ facts }) => number(facts.loss[2])],
    ["interventions", ({ facts }) => number(facts.interventions)], ["helped", ({ facts }) => number(facts.outcomes.helped ?? 0)],
    ["no effect or worse", ({ facts }) => number((facts.outcomes.no_effect ?? 0) + (facts.outcomes.worse ?? 0))],
    ["skipped steps", ({ facts }) => number(facts.skipped)], ["episodes", ({ episodes, untold }) => number(episodes.length + untold)],
    ["first trouble", ({ episodes }) => (episodes.length ? `step ${number(episodes[0].first)}: ${episodes[0].chain[0].diagnosis}` : "none")],
  ];
  return el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), DATA.runs.map((run) => el("th", { scope: "col" }, run.title)))),
    el("tbody", {}, lines.map(([name, of]) => el("tr", {}, el("th", { scope: "row" }, name), DATA.runs.map((run) => el("td", {}, of(run))))))));
}
