// The curves of a run, which follow it while it goes on.
import { get } from "./api.js";
import { debounced, errorBox, f, facts, field, h, link, problems, replace } from "./ui.js";

const SECTIONS = ["train", "reward", "loss", "optim", "filter", "ending"];

export const kindOf = (key) => {
  if (/(^|\/)(success|clip|kept|share|zero_variance|rate)|^ending\/|fraction/.test(key)) return "share";
  if (/_s$/.test(key)) return "seconds";
  return "number";
};

// Metrics of rows: names, and points with the interval that "x_low" and "x_high" give.
export function metricsOf(rows) {
  const keys = [...new Set(rows.flatMap(({ values }) => Object.keys(values)))];
  const isEnd = (key) => /_(low|high)$/.test(key) && keys.includes(key.replace(/_(low|high)$/, ""));
  const points = (key) =>
    rows.filter(({ values }) => key in values).map(({ step, values }) => ({ x: step, y: values[key], low: values[`${key}_low`], high: values[`${key}_high`] }));
  return { keys: keys.filter((key) => !isEnd(key)), points };
}

export function evaluationPoints(evaluations, label) {
  return evaluations
    .filter((item) => item.label === label && item.success.valid)
    .map(({ step, success: { valid } }) => ({ x: step, y: valid.value, low: valid.interval.low, high: valid.interval.high }));
}

// series: [{name, rows, evaluations}], one or several runs; returns charts by section.
export function charts(runs, store, filter = "") {
  const metrics = runs.map(({ rows }) => metricsOf(rows));
  const keys = [...new Set(metrics.flatMap(({ keys }) => keys))].filter((key) => key.toLowerCase().includes(filter.toLowerCase()));
  const labels = [...new Set(runs.flatMap(({ evaluations }) => evaluations.map(({ label }) => label)))];
  const ofLabels = labels.filter((label) => `success ${label}`.includes(filter.toLowerCase())).map((label) => {
    const series = runs.map(({ name, evaluations }, i) => ({ name, color: EG.palette.series(i), mark: EG.palette.mark(i), points: evaluationPoints(evaluations, label) }));
    return chart(`success, ${f.evaluation(label)}`, "share", series, store, [0, 1]);
  });
  const sections = new Map([["main", ofLabels]]);
  for (const key of keys) {
    const section = key.includes("/") ? key.split("/")[0] : "other";
    const series = runs.map(({ name }, i) => ({ name: runs.length > 1 ? name : "", color: EG.palette.series(i), dash: EG.palette.dash(i), points: metrics[i].points(key) }));
    sections.set(section, [...(sections.get(section) ?? []), chart(section === "other" ? f.keyName(key) : `${section}: ${f.keyName(key)}`, kindOf(key), series, store)]);
  }
  // A section of one or two charts is no section.
  for (const [name, list] of [...sections]) {
    if (name === "main" || list.length > 2) continue;
    sections.delete(name);
    sections.get("main").push(...list);
  }
  const place = (name) => (name === "main" ? -1 : SECTIONS.includes(name) ? SECTIONS.indexOf(name) : SECTIONS.length);
  return [...sections].map(([name, list]) => [name, list.filter(Boolean)]).filter(([, list]) => list.length).sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b));
}

// Charts that are drawn again listen to a store of their own, so that the old ones are forgotten.
export function renewed(store) {
  const next = EG.makeStore();
  next.set("range", store.get("range"));
  return next;
}

function chart(title, kind, series, store, fixed) {
  const drawn = series.filter(({ points }) => points.some(({ y }) => y !== null));
  return drawn.length ? EG.lines.lineChart({ title, kind, series: drawn, store, fixed }) : null;
}

export async function show(context) {
  const { run } = context;
  let store = EG.makeStore();
  const head = h("div", {});
  const status = h("span", { class: "live", role: "status" });
  const body = h("div", { class: "curves" });
  let rows = [];
  let evaluations = [];
  let filter = context.query.filter ?? "";
  let numEvaluations = -1;

  function drawHead() {
    const it = context.runs[run];
    replace(
      head,
      facts([
        ["env", h("span", {}, it.env_ids.map((id, i) => [i ? ", " : "", link("env", { id, run }, EG.tokens.safe(id))]))],
        ["model", it.model],
        ["recipe", it.recipe],
        ["agent", it.agent],
        ["seed", it.seed === null ? "" : String(it.seed)],
        ["train steps", it.last_step === null ? "" : `${f.count(it.last_step)}${it.steps ? ` of ${f.count(it.steps)}` : ""}`],
        ["episodes", h("span", {}, link(`run/${run}/episodes`, {}, f.count(it.num_episodes)))],
      ]),
      problems(it.problems),
    );
    const isOver = it.steps && it.last_step >= it.steps;
    status.textContent = isOver ? "all train steps are done" : it.steps ? "follows the run" : "";
    status.classList.toggle("is-over", Boolean(isOver));
  }

  // The zoom of the charts stays.
  function draw() {
    store = renewed(store);
    const made = charts([{ name: context.runs[run].name, rows, evaluations }], store, filter);
    replace(
      body,
      made.map(([name, list]) => h("section", {}, h("h2", {}, name), h("div", { class: "grid" }, list))),
      made.length ? null : h("p", { class: "muted" }, filter ? "No metric has this name." : "No train step and no evaluation is over yet."),
    );
  }

  async function read() {
    const it = context.runs[run];
    const last = rows.length ? rows[rows.length - 1].step : -1;
    const [more, evals] = await Promise.all([
      get(`runs/${run}/metrics`, { after: last }),
      it.num_evaluations === numEvaluations ? { evaluations } : get(`runs/${run}/evaluations`),
    ]);
    // Fewer rows than before: the run was resumed from an earlier step.
    const isShorter = more.num_rows < rows.length + more.rows.length;
    const isNew = more.rows.length > 0 || isShorter || it.num_evaluations !== numEvaluations;
    rows = isShorter ? (await get(`runs/${run}/metrics`)).rows : [...rows, ...more.rows];
    evaluations = evals.evaluations;
    numEvaluations = it.num_evaluations;
    drawHead();
    if (isNew) draw();
  }

  const search = h("input", { type: "search", placeholder: "reward, loss ...", "aria-label": "Filter metrics", value: filter });
  const refilter = debounced(() => {
    filter = search.value;
    context.setQuery({ filter });
    draw();
  });
  search.addEventListener("input", refilter);
  const smoothing = h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: "0", "aria-label": "Smoothing", on: { input: (event) => smooth(Number(event.target.value)) } });
  function smooth(weight) {
    EG.store.set("smoothing", weight);
    draw();
  }
  EG.store.set("smoothing", 0);
  try {
    await read();
  } catch (error) {
    drawHead();
    replace(body, errorBox(error));
  }
  context.onPoll = async () => {
    try {
      await read();
    } catch (error) {
      replace(body, errorBox(error));
    }
  };
  return [
    h("header", {}, h("p", { class: "overline" }, "run"), h("h1", {}, EG.tokens.safe(context.runs[run].name)), head),
    h("div", { class: "controls" }, field("Metrics", search), field("Smoothing", smoothing), status, h("span", { class: "hint" }, "drag to zoom, double-click to see all")),
    body,
  ];
}
