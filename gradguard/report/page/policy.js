"use strict";
// The policy in force, the environment, and what the words mean.

function rulesTable(rules) {
  const lines = rules.map(([name, when, act, ladder]) =>
    el(
      "tr",
      {},
      el("td", {}, name),
      el("td", {}, when),
      el(
        "td",
        {},
        el("div", {}, act),
        ladder.map((rung) => el("div", {}, `↳ ${rung}`)),
      ),
    ),
  );
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "rules" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["rule", "when", "do"].map((head) => el("th", { scope: "col" }, head)),
        ),
      ),
      el("tbody", {}, lines),
    ),
  );
}

function policyCard({ policy }) {
  const acting = policy.rules.filter(([, , , , onlyTells]) => !onlyTells);
  const telling = policy.rules.filter(([, , , , onlyTells]) => onlyTells);
  return el(
    "div",
    {},
    acting.length
      ? rulesTable(acting)
      : el("p", { class: "empty" }, "No rule that acts: the guard measured, and recorded what it found."),
    telling.length
      ? el(
          "details",
          {},
          el(
            "summary",
            {},
            `${count(telling.length, "more rule")} that only ${telling.length === 1 ? "tells" : "tell"}`,
          ),
          rulesTable(telling),
        )
      : null,
    el("details", {}, el("summary", {}, "All of it, as YAML"), el("pre", {}, policy.yaml)),
  );
}

function factsTable(rows) {
  return el(
    "table",
    { class: "facts" },
    el(
      "tbody",
      {},
      rows.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, value))),
    ),
  );
}

function glossary() {
  const words = Object.assign({}, ...DATA.runs.map((run) => run.glossary));
  const names = Object.keys(words).sort();
  if (!names.length) return null;
  return el(
    "div",
    { class: "card" },
    el(
      "dl",
      { class: "pairs" },
      names.flatMap((name) => [el("dt", {}, el("code", {}, name)), el("dd", {}, words[name])]),
    ),
  );
}
