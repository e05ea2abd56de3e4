"use strict";
// What is behind a row of the table: evidence, decision, change, and what came of it.

function evidenceOf(view, row, showSpan) {
  const { actions, evidence } = view.run;
  const { texts } = actions;
  const detail = evidence[row.place];
  const back = el(
    "button",
    { type: "button", onclick: () => showSpan(row.step, row.step) },
    "Show in the charts",
  );
  if (!detail) {
    return el(
      "div",
      { class: "details" },
      el(
        "p",
        { class: "wide" },
        "There was no room for the evidence of every intervention. All of it: ",
        el("code", {}, `gradguard show ${view.run.path} --step ${row.step}`),
      ),
      el("div", { class: "wide" }, back),
    );
  }
  const text = (place) => texts[place];
  const part = (title, ...content) => el("div", {}, el("h4", {}, title), ...content);
  const pairs = (items) =>
    el(
      "dl",
      { class: "pairs" },
      items
        .filter(([, value]) => value !== null && value !== undefined && value !== "")
        .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    );
  const blocks = [];
  const { finding, change, outcome } = detail;
  if (finding) {
    const [value, baseline, threshold, window] = finding.numbers;
    blocks.push(
      part(
        "Found",
        el("p", {}, finding.message || row.diagnosis),
        finding.follows
          ? el("p", {}, `Follows from ${text(finding.follows[0])} at step ${number(finding.follows[1])}.`)
          : null,
        finding.advice === null ? null : el("p", {}, el("b", {}, "What to do: "), text(finding.advice)),
      ),
    );
    const named = finding.layers.map((place, i) => [i ? ", " : "", el("code", {}, breakable(text(place)))]);
    blocks.push(
      part(
        "Evidence",
        pairs([
          ["severity", text(finding.severity)],
          [text(finding.statistic), value === null ? null : number(value)],
          ["usual", baseline === null ? null : number(baseline) + (window ? ` over ${number(window)} steps` : "")],
          ["alarm from", threshold === null ? null : number(threshold)],
          ...finding.evidence.map(([name, item]) => [text(name), number(item)]),
        ]),
        named.length ? el("p", {}, "In ", named, finding.more ? ` and ${number(finding.more)} more` : "") : null,
      ),
    );
  }
  const rung = detail.rung ? `, rung ${detail.rung} of its ladder` : "";
  const why =
    detail.rule === null
      ? text(detail.reason)
      : [`rule `, el("code", {}, text(detail.rule)), ` ${text(detail.reason)}${rung}`];
  blocks.push(
    part(
      row.outcome === "not_done" ? "Why it was not done" : "Decision",
      el("p", {}, why),
      row.outcome === "not_done" ? el("p", {}, row.summary) : null,
      detail.samples ? el("p", {}, `Samples: ${detail.samples}`) : null,
    ),
  );
  if (change && change.length) {
    const cell = (value) => el("td", { class: "number" }, value === undefined || value === null ? "" : number(value));
    blocks.push(
      part(
        "Before and after",
        el(
          "table",
          { class: "change" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["", "before", "after"].map((head, i) => el("th", { class: i ? "number" : null }, head)),
            ),
          ),
          el(
            "tbody",
            {},
            change.map(([name, before, after]) => el("tr", {}, el("td", {}, text(name)), cell(before), cell(after))),
          ),
        ),
      ),
    );
  }
  if (outcome) {
    const [before, after, noise] = outcome.losses;
    blocks.push(
      part(
        "Outcome",
        el("p", {}, verdict(row.outcome), outcome.text ? `: ${outcome.text}` : ""),
        pairs([
          ["judged at step", number(outcome.step)],
          ["loss before", number(before)],
          ["loss since", number(after)],
          ["usual noise", noise === null ? null : `± ${number(noise, 2)}`],
        ]),
      ),
    );
  }
  return el("div", { class: "details" }, blocks, el("div", { class: "wide" }, back));
}
