"use strict";
// How an outcome looks: a colour, a shape and a word, so that none of them alone has to be told apart.

const OUTCOMES = {
  worse: { text: "worse", color: "red", symbol: "x" },
  stop: { text: "stopped", color: "red", symbol: "octagon" },
  no_effect: { text: "no effect", color: "orange", symbol: "square" },
  helped: { text: "helped", color: "green", symbol: "circle" },
  unknown: { text: "not known", color: "purple", symbol: "diamond" },
  waiting: { text: "not judged", color: "purple", symbol: "diamond-open" },
  told: { text: "told only", color: "blue", symbol: "triangle-down" },
  not_done: { text: "not done", color: "grey", symbol: "circle-open" },
};
const RANK = Object.keys(OUTCOMES);
const outcomeOf = (name) => OUTCOMES[name] ?? { text: name, color: "grey", symbol: "circle-open" };

function verdict(name) {
  const { text, color: ink, symbol } = outcomeOf(name);
  return el("span", { class: `verdict ink-${ink}` }, symbolSign(symbol, ink), text);
}

// Rows of the table as objects, and the marks of a chart: what was done about one diagnosis at one step is one mark.
function actionRows({ texts, rows }) {
  return rows.map(([step, diagnosis, remedy, layer, outcome, summary], place) => ({
    place,
    step,
    diagnosis: texts[diagnosis],
    remedy: texts[remedy],
    layer: texts[layer],
    outcome: texts[outcome],
    summary: texts[summary],
  }));
}

function marksOf(rows) {
  const marks = new Map();
  for (const row of rows) {
    const key = `${row.step} ${row.diagnosis}`;
    if (!marks.has(key)) marks.set(key, { step: row.step, diagnosis: row.diagnosis, rows: [] });
    marks.get(key).rows.push(row);
  }
  for (const mark of marks.values()) {
    const done = mark.rows.filter((row) => row.outcome !== "not_done");
    mark.rows = done.length ? done : mark.rows;
    mark.outcome = mark.rows.map((row) => row.outcome).sort(byRank)[0];
  }
  return [...marks.values()];
}

function markText(mark) {
  const lines = mark.rows
    .slice(0, 4)
    .map((row) => `${row.remedy || "no remedy"}: ${shortened(row.summary || "told", 70)}`);
  if (mark.rows.length > 4) lines.push(`and ${mark.rows.length - 4} more`);
  const layer = mark.rows.find((row) => row.layer)?.layer;
  return [
    `step ${mark.step}: ${mark.diagnosis}`,
    layer ? `in ${shortened(layer, 70)}` : "",
    ...lines,
    outcomeOf(mark.outcome).text,
  ]
    .filter(Boolean)
    .map(plain)
    .join("<br>");
}

// A text in lines that are not much longer than `width` characters.
function wrapped(text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1).length + word.length > width && lines.at(-1)) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${shortened(word, width)}`;
  }
  return lines;
}

// Called with what was clicked in a chart: goes to the row of a mark.
const markOpener = (openRow) => (points) => {
  const point = points.find((one) => one.customdata !== undefined);
  if (point) openRow(point.customdata);
};

// Of many marks in view those that can be told apart: one of a kind for each place on the screen, none of a kind lost.
const MOST_MARKS = 1500;
function thinned(marks, [from, to]) {
  const inView = marks.filter((mark) => mark.step >= from && mark.step <= to);
  if (inView.length <= MOST_MARKS) return inView;
  const seen = new Map();
  for (const mark of inView) {
    const place = Math.floor(((mark.step - from) / Math.max(1, to - from)) * 300);
    const key = `${place} ${mark.diagnosis} ${mark.outcome}`;
    if (!seen.has(key)) seen.set(key, mark);
  }
  return [...seen.values()];
}

const byRank = (a, b) => RANK.indexOf(a) - RANK.indexOf(b);
const outcomeSigns = (outcomes) => [...new Set(outcomes)].sort(byRank).map(verdict);
