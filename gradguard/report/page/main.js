"use strict";
// Puts the page together.

const AROUND = 60; // steps shown on either side of what a reader asked to see

const views = DATA.runs.map((run, index) => new View(run, index));

// The layer to begin with: the one that most was found in, else the one with the largest gradient.
function firstLayer(run) {
  const votes = new Map();
  for (const { where } of run.episodes) if (where.length) votes.set(where[0], (votes.get(where[0]) ?? 0) + 1);
  for (const [name] of [...votes].sort((a, b) => b[1] - a[1])) {
    const place = run.layers.indexOf(name);
    if (place >= 0) return place;
  }
  return 0;
}

for (const view of views) view.layer = firstLayer(view.run);

function showSpan(view, first, last) {
  const [from, to] = view.whole;
  const span = [Math.max(from, first - AROUND), Math.min(to, last + AROUND)];
  view.set("span", span[0] <= from && span[1] >= to ? null : span);
  document.getElementById("curves").scrollIntoView();
  document.querySelectorAll("#curves .chart")[view.index]?.focus({ preventScroll: true });
}

const hasSteps = DATA.runs.some((run) => run.facts.steps);
const hasActions = DATA.runs.some((run) => run.facts.interventions || run.withheld.length);
const ZOOM = "Drag across a chart to zoom all of them.";
const SECTIONS = [
  {
    id: "curves",
    title: "Loss and learning rate",
    lead:
      (hasActions
        ? "Every mark is something the guard found: colour and shape say what came of it. Click one, or walk to it with the arrow keys and press Enter, to read why. "
        : "") + ZOOM,
    draw: ({ view, rows, table }) => lossChart(view, rows, (place) => table.open(place)),
    needsSteps: true,
  },
  {
    id: "norm",
    title: "Gradient norm",
    lead: "How large the gradient was beside its own recent past. Above a threshold the guard looks closer, once the run has warmed up; not every such step is an alarm.",
    draw: ({ view, rows, table }) => normChart(view, rows, (place) => table.open(place)),
    needsSteps: true,
  },
  {
    id: "heat",
    title: "Every layer over time",
    lead: "Gradient norm of each parameter tensor, first layers on top: bright is large, dark is small. Trouble starts where a row changes first. Click a row to choose that layer below.",
    draw: ({ view }) => heatChart(view),
    needsSteps: true,
  },
  {
    id: "interventions",
    title: "Interventions",
    lead: hasActions
      ? "What was found and done, step by step. Click a row for the evidence, the decision, the change, and what came of it."
      : "",
    isWide: true,
    draw: ({ view, rows, table }) => interventions(view, rows, table),
    needsSteps: true,
  },
  {
    id: "efficacy",
    title: "What helped",
    lead: "Every intervention is judged some steps later. Helped: the loss is where it was or lower, and the same came back on one step in five at most, or the loss fell all the same. Loss change and steps to recover are medians.",
    isWide: true,
    draw: ({ view }) => el("div", {}, efficacyTable(view.run), withheldTable(view.run)),
    needsSteps: true,
  },
  {
    id: "boxes",
    title: "Every layer over the chosen steps",
    lead: "Half of the values lie in a box, all of them between its whiskers. Layers that differ by orders of magnitude do not learn at the same pace.",
    draw: ({ view }) => boxChart(view),
    needsSteps: true,
  },
  {
    id: "layer",
    title: "One layer",
    lead: "The gradient of one parameter tensor: its norm at every step, the others at the probes.",
    draw: ({ view }) => evolutionChart(view),
    needsSteps: true,
  },
  {
    id: "updates",
    title: "Updates beside weights",
    lead: "Norm of one update over norm of the weights it changes. Far below 1e-3 hardly anything is learnt, far above it little is kept.",
    draw: ({ view }) => updatesChart(view),
    needsSteps: true,
  },
  {
    id: "activations",
    title: "Dead and saturated units",
    lead: "A dead unit is 0 for every sample and learns nothing more; a saturated one is stuck where its activation is flat.",
    draw: ({ view }) => activationChart(view),
    needsSteps: true,
  },
  {
    id: "histograms",
    title: "Gradients at the probes",
    lead: "How the entries of one gradient are spread over sign and size.",
    draw: ({ view }) => histogramChart(view),
    needsSteps: true,
  },
  { id: "policy", title: "The policy in force", lead: "", isWide: true, draw: ({ view }) => policyCard(view.run) },
  { id: "environment", title: "Environment", lead: "", draw: ({ view }) => environment(view.run) },
];
const SHORT = {
  story: "Story",
  curves: "Loss",
  norm: "Norm",
  heat: "Layers",
  interventions: "Interventions",
  efficacy: "Efficacy",
  boxes: "Boxes",
  layer: "One layer",
  updates: "Updates",
  activations: "Units",
  histograms: "Histograms",
  policy: "Policy",
  environment: "Setup",
};

function interventions(view, rows, table) {
  if (!rows.length) return el("p", { class: "empty" }, "None: nothing was found that a rule had to act on.");
  const { left_out: left } = view.run.actions;
  return el(
    "div",
    {},
    table.node,
    left ? el("p", { class: "lead" }, `${count(left, "more row")} left out: there was no room for them.`) : null,
  );
}

function environment(run) {
  const facts = [
    ["recorded in", run.path],
    ["created", run.facts.created],
    ...run.policy.facts.map(([name, value]) => [`policy: ${name}`, value]),
  ];
  return el("div", {}, el("div", { class: "two" }, factsTable(run.environment), factsTable(facts)));
}

function section(id, title, lead, content) {
  return el(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title),
    lead ? el("p", { class: "lead" }, lead) : null,
    content,
  );
}

const runTitle = (run) => (DATA.runs.length > 1 ? el("p", { class: "run-title" }, run.title) : null);

// A card for each run, still empty.
function cards({ isWide }) {
  return el(
    "div",
    { class: isWide ? "" : "runs" },
    DATA.runs.map((run) => el("div", { class: "card" }, runTitle(run))),
  );
}

const page = document.getElementById("page");
page.append(el("div", { class: "runs" }, DATA.runs.map(hero)));
if (DATA.runs.length > 1) page.append(section("comparison", "Side by side", "", comparison()));
page.append(
  section(
    "story",
    "What happened",
    "",
    el(
      "div",
      { class: "runs" },
      views.map((view) =>
        el(
          "div",
          {},
          runTitle(view.run),
          story(view, (first, last) => showSpan(view, first, last)),
        ),
      ),
    ),
  ),
);
const hasEfficacy = DATA.runs.some((run) => run.efficacy.length || run.withheld.length);
const drawn = SECTIONS.filter(({ id, needsSteps }) =>
  id === "efficacy" ? hasEfficacy : !needsSteps || hasSteps || hasActions,
);
for (const one of drawn) page.append(section(one.id, one.title, one.lead, cards(one)));
const words = glossary();
if (words) page.append(section("words", "What the words mean", "", words));
page.append(
  el(
    "p",
    { class: "lead" },
    el("br"),
    "Written by gradguard report from the run's own record. gradguard verify checks that the record is complete and unchanged.",
  ),
);

// Called as soon as the numbers have been read: fills the sections, and shows a glimpse of the charts on the screen.
function fillSections() {
  const parts = views.map((view) => {
    const rows = actionRows(view.run.actions);
    return { view, rows, table: new ActionTable(view, rows, (step) => showSpan(view, step, step)) };
  });
  for (const { id, draw } of drawn) {
    document.querySelectorAll(`#${id} .card`).forEach((card, place) => card.append(draw(parts[place])));
  }
  document.querySelectorAll(".chart").forEach((host) => host.glimpse());
  performance.mark("glimpse");
}

// Called when the library is there as text: it takes a while to run, which the words and the glimpse do not wait for.
function drawCharts() {
  requestAnimationFrame(() =>
    setTimeout(() => {
      const hosts = document.querySelectorAll(".chart");
      if (hosts.length) {
        const library = document.createElement("script");
        library.textContent = document.getElementById("plotly").textContent;
        document.head.append(library);
        hosts.forEach((host) => nearScreen.observe(host));
      }
      performance.mark("charts");
    }),
  );
}

const links = ["story", ...drawn.map(({ id }) => id)].map((id) => el("a", { href: `#${id}` }, SHORT[id]));
document.getElementById("sections").append(...links);
const inSight = new IntersectionObserver(
  (entries) =>
    entries
      .filter((entry) => entry.isIntersecting)
      .forEach((entry) =>
        links.forEach((link) => {
          if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
        }),
      ),
  { rootMargin: "-20% 0px -70% 0px" },
);
document.querySelectorAll("main > section").forEach((node) => inSight.observe(node));
performance.mark("words");
