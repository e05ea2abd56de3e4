"use strict";
// What each remedy was worth, and what was not done.

const share = (value) =>
  value === null
    ? "–"
    : value >= 10
      ? `×${number(value + 1, 3)}`
      : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(Math.round(value * 100))} %`;

function efficacyTable({ efficacy }) {
  if (!efficacy.length) return el("p", { class: "empty" }, "Nothing was done whose outcome could be judged.");
  const heads = [
    "found, and done",
    "times",
    "helped",
    "no effect",
    "worse",
    "not known",
    "loss change",
    "steps to recover",
  ];
  const rows = [];
  let group = null;
  for (const row of efficacy) {
    if (row.diagnosis !== group)
      rows.push(el("tr", { class: "group" }, el("td", { colspan: heads.length }, row.diagnosis)));
    group = row.diagnosis;
    const numbers = [row.count, row.helped, row.no_effect, row.worse, row.unknown + row.waiting].map((value) =>
      value ? number(value) : "–",
    );
    const cells = [
      ...numbers,
      share(row.loss_change),
      row.steps_to_recover === null ? "–" : number(Math.round(row.steps_to_recover)),
    ];
    rows.push(
      el(
        "tr",
        { class: "inner" },
        el("td", {}, row.remedy || "(left alone)"),
        cells.map((cell) => el("td", { class: "number" }, cell)),
      ),
    );
  }
  return scrolledTable(heads, (head) => head !== heads[0], rows);
}

function scrolledTable(heads, isNumber, rows) {
  const cells = heads.map((head) => el("th", { scope: "col", class: isNumber(head) ? "number" : null }, head));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, cells)), el("tbody", {}, rows)));
}

function withheldTable({ withheld }) {
  if (!withheld.length) return null;
  const heads = ["found", "remedy", "why not", "times", "steps", "mostly in"];
  const rows = withheld.map(([diagnosis, remedy, reason, times, first, last, layer]) =>
    el(
      "tr",
      {},
      el("td", {}, breakable(diagnosis)),
      el("td", {}, breakable(remedy || "–")),
      el("td", {}, reason),
      el("td", { class: "number" }, number(times)),
      el("td", {}, first === last ? number(first) : `${number(first)}–${number(last)}`),
      el("td", {}, breakable(layer || "–")),
    ),
  );
  return [
    el("h3", {}, "What was due and not done"),
    scrolledTable(heads, (head) => head === "times", rows),
  ];
}
