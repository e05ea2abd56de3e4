"use strict";
// The first thing to read: what broke, where, what was done, whether it worked; and several runs beside each other.

const ANSWER_SIGN = { good: "✓", bad: "✕", mixed: "!", calm: "●", open: "○" };

function hero(run) {
  const { facts } = run;
  const parts = [
    [facts.status, ""],
    [number(facts.steps), facts.steps === 1 ? " step" : " steps"],
    [duration(facts.seconds), ""],
    [number(facts.layers), " parameter tensors watched"],
    [`mode ${facts.mode}`, ""],
  ];
  return el(
    "div",
    { class: "card hero" },
    el("p", { class: "run-title" }, run.title),
    el(DATA.runs.length === 1 ? "h1" : "h3", {}, run.headline),
    el(
      "p",
      { class: "facts-line" },
      parts.map(([value, noun]) => el("span", {}, el("b", {}, value), noun)),
    ),
    run.answers.length
      ? el(
          "div",
          { class: "answers" },
          run.answers.map(({ question, answer, detail, tone }) =>
            el(
              "div",
              { class: `answer ${tone}` },
              el(
                "p",
                { class: "question" },
                el("span", { class: `tone-${tone}`, "aria-hidden": "true" }, `${ANSWER_SIGN[tone]} `),
                question,
              ),
              el("p", { class: "reply" }, breakable(answer)),
              el("p", { class: "detail" }, breakable(shortened(detail, 220))),
            ),
          ),
        )
      : null,
    closest(run),
    run.notes.length
      ? el(
          "div",
          {},
          el("h3", {}, "Notes"),
          el(
            "ul",
            { class: "notes" },
            run.notes.map((note) => el("li", {}, note)),
          ),
        )
      : null,
  );
}

function closest({ closest, alarm, episodes }) {
  if (!closest || episodes.length || !alarm.ratios.length) return null;
  const text = `Closest call: at step ${number(closest.step)} the gradient norm was ${number(closest.ratio, 2)} times its usual size; the guard looks closer from ${number(alarm.ratios[0])} times on.`;
  return el("p", { class: "facts-line" }, text);
}

// Several runs beside each other, a fact a line.
function comparison() {
  const lines = [
    ["status", ({ facts }) => facts.status],
    ["steps", ({ facts }) => number(facts.steps)],
    ["time", ({ facts }) => duration(facts.seconds)],
    ["loss, first", ({ facts }) => number(facts.loss[0])],
    ["loss, at the end", ({ facts }) => number(facts.loss[1])],
    ["loss, lowest", ({ facts }) => number(facts.loss[2])],
    ["interventions", ({ facts }) => number(facts.interventions)],
    ["helped", ({ facts }) => number(facts.outcomes.helped ?? 0)],
    ["no effect or worse", ({ facts }) => number((facts.outcomes.no_effect ?? 0) + (facts.outcomes.worse ?? 0))],
    ["skipped steps", ({ facts }) => number(facts.skipped)],
    ["episodes", ({ episodes, untold }) => number(episodes.length + untold)],
    [
      "first trouble",
      ({ episodes }) =>
        episodes.length ? `step ${number(episodes[0].first)}: ${episodes[0].chain[0].diagnosis}` : "none",
    ],
  ];
  return el(
    "div",
    { class: "card scroll" },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, ""),
          DATA.runs.map((run) => el("th", { scope: "col" }, run.title)),
        ),
      ),
      el(
        "tbody",
        {},
        lines.map(([name, of]) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, name),
            DATA.runs.map((run) => el("td", {}, of(run))),
          ),
        ),
      ),
    ),
  );
}
