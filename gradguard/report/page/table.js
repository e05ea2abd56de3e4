"use strict";
// The table of interventions: filters, rows that open, and the way from a mark to its row and back. Of many rows the
// first are there, and more when asked for; the filters look at all.

const PAGE_ROWS = 50;
const COLUMNS = ["step", "found", "layer", "done", "outcome"];
const FILTERS = [
  ["diagnosis", "Diagnosis"],
  ["remedy", "Remedy"],
  ["layer", "Layer"],
  ["outcome", "Outcome"],
];

// A click into a row opens it; one on what is a control itself, or that selects text, does not.
function isMeantForRow({ target, detail }) {
  return !target.closest("button, a") && detail < 2 && getSelection().isCollapsed;
}

class ActionTable {
  constructor(view, rows, showSpan) {
    Object.assign(this, { view, rows, showSpan, limit: PAGE_ROWS, opened: new Set(), chosen: {}, from: -Infinity });
    this.withUndone = rows.every((row) => row.outcome === "not_done");
    this.body = el("tbody");
    this.count = el("p", { class: "lead", role: "status" });
    this.more = el("button", { type: "button", onclick: () => this.showMore() }, "Show more");
    this.fromStep = el("input", {
      type: "number",
      onchange: () => this.startAt(this.fromStep.value === "" ? -Infinity : Number(this.fromStep.value)),
    });
    this.selects = FILTERS.map(([key, label]) => this.filter(key, label));
    this.tick = el("input", {
      type: "checkbox",
      checked: this.withUndone,
      onchange: () => {
        this.withUndone = this.tick.checked;
        this.draw();
      },
    });
    const reset = el("button", { type: "button", onclick: () => this.reset() }, "Clear filters");
    const hasUndone = rows.some((row) => row.outcome === "not_done");
    this.node = el(
      "div",
      {},
      el(
        "div",
        { class: "controls", role: "group", "aria-label": "Filters" },
        this.selects,
        rows.length > PAGE_ROWS ? el("label", {}, "From step", this.fromStep) : null,
        hasUndone ? el("label", { class: "tick" }, this.tick, el("span", {}, "also what was not done")) : null,
        reset,
      ),
      this.count,
      el(
        "table",
        { class: "actions" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            COLUMNS.map((head) => el("th", { scope: "col" }, head)),
          ),
        ),
        this.body,
      ),
      this.more,
    );
    this.draw();
  }

  filter(key, label) {
    const counts = new Map();
    for (const row of this.rows) counts.set(row[key], (counts.get(row[key]) ?? 0) + 1);
    const entries = [...counts].sort((a, b) => b[1] - a[1]);
    const text = (value) => (key === "outcome" ? outcomeOf(value).text : value || "(none named)");
    const options = [
      ["", "all"],
      ...entries.map(([value, times], place) => [String(place), `${text(value)} (${number(times)})`]),
    ];
    const node = choice(label, options, "", (place) => {
      this.chosen[key] = place === "" ? undefined : entries[Number(place)][0];
      this.limit = PAGE_ROWS;
      this.draw();
    });
    node.querySelector("select").dataset.filter = key;
    return node;
  }

  reset() {
    this.chosen = {};
    this.selects.forEach((label) => (label.querySelector("select").value = ""));
    this.startAt(-Infinity);
  }

  startAt(step) {
    this.from = step;
    this.fromStep.value = Number.isFinite(step) ? step : "";
    this.limit = PAGE_ROWS;
    this.draw();
  }

  matching() {
    const wanted = Object.entries(this.chosen).filter(([, value]) => value !== undefined);
    const wantsUndone = this.withUndone || this.chosen.outcome === "not_done";
    return this.rows.filter(
      (row) =>
        row.step >= this.from &&
        (wantsUndone || row.outcome !== "not_done") &&
        wanted.every(([key, value]) => row[key] === value),
    );
  }

  draw() {
    this.body.replaceChildren();
    this.append(0);
  }

  // Appends the rows from a place among the matching ones on.
  append(start) {
    const rows = this.matching();
    this.body.append(...rows.slice(start, this.limit).flatMap((row) => this.lines(row)));
    const isPart = rows.length > this.limit;
    this.count.textContent = rows.length
      ? `${count(rows.length, "row")}${isPart ? `, the first ${number(this.limit)} shown` : ""}`
      : "Nothing matches these filters.";
    this.more.hidden = !isPart;
    return rows;
  }

  showMore() {
    const start = this.limit;
    this.limit += 4 * PAGE_ROWS;
    const rows = this.append(start);
    if (this.more.hidden) this.button(rows[start].place).focus();
  }

  button(place) {
    return document.getElementById(`run${this.view.index}-row${place}`);
  }

  lines(row) {
    const isOpen = this.opened.has(row.place);
    const id = `run${this.view.index}-row${row.place}`;
    const button = el(
      "button",
      { type: "button", class: "expand", id, "aria-expanded": String(isOpen), onclick: () => this.toggle(row) },
      el("i", { "aria-hidden": "true" }, "▸"),
      number(row.step),
    );
    const done =
      row.outcome === "not_done"
        ? [row.remedy ? `${row.remedy}: ` : "", row.summary]
        : [el("b", {}, row.remedy), row.outcome === "told" || !row.summary ? "" : `: ${row.summary}`];
    const line = el(
      "tr",
      { class: "row", onclick: (event) => isMeantForRow(event) && this.toggle(row) },
      el("td", {}, button),
      el("td", {}, row.diagnosis),
      el("td", { class: row.layer ? null : "none" }, row.layer ? el("code", {}, breakable(row.layer)) : "–"),
      el("td", {}, done),
      el("td", {}, verdict(row.outcome)),
    );
    if (!isOpen) return [line];
    return [line, this.detail(row)];
  }

  detail(row) {
    const cell = el("td", { class: "detail-cell", colspan: COLUMNS.length }, evidenceOf(this.view, row, this.showSpan));
    return el("tr", { class: "detail" }, cell);
  }

  toggle(row) {
    const button = this.button(row.place);
    const line = button.closest("tr");
    const wasOpen = this.opened.delete(row.place);
    if (wasOpen) line.nextElementSibling.remove();
    else {
      this.opened.add(row.place);
      line.after(this.detail(row));
    }
    button.setAttribute("aria-expanded", String(!wasOpen));
  }

  // Opens a row, whatever the filters say, and goes there.
  open(place) {
    const row = this.rows[place];
    if (row.outcome === "not_done") this.withUndone = this.tick.checked = true;
    if (!this.matching().includes(row)) this.reset();
    this.opened.add(place);
    const index = () => this.matching().indexOf(row);
    if (index() >= this.limit) this.startAt(row.step);
    this.limit = Math.max(this.limit, index() + 1);
    this.draw();
    const button = this.button(place);
    const line = button.closest("tr");
    line.classList.add("is-target");
    line.scrollIntoView({ block: "center" });
    button.focus({ preventScroll: true });
  }
}
