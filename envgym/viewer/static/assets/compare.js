// Runs side by side: curves in one chart, the settings that differ, the last value of every metric.
import { get } from "./api.js";
import { charts, kindOf, renewed } from "./overview.js";
import { debounced, f, field, h, link, replace, safe } from "./ui.js";

const BASICS = new Set(["train: success", "reward: mean", "loss: entropy", "loss: policy", "optim: grad norm"]);

function settings({ settings: rows, num_equal }, names) {
  const shown = ({ value }) => (value === undefined ? h("span", { class: "muted" }, "not set") : safe(typeof value === "string" ? value : JSON.stringify(value)));
  const equal = `${f.plural(num_equal, "setting")} ${num_equal === 1 ? "is" : "are"} equal.`;
  if (!rows.length) return h("p", { class: "muted" }, `No setting differs; ${equal}`);
  const head = h("tr", {}, h("th", { scope: "col" }, "setting"), names.map((name) => h("th", { scope: "col" }, name)));
  return [h("div", { class: "scroll card" }, h("table", { class: "compared" }, h("thead", {}, head), h("tbody", {}, rows.map(({ key, values }) => h("tr", {}, h("th", { scope: "row" }, safe(key)), values.map((value) => h("td", {}, shown(value)))))))), h("p", { class: "note" }, equal)];
}

function metrics({ metrics: rows }, names, filter) {
  const kept = rows.filter(({ key }) => !/_(low|high)$/.test(key) && key.toLowerCase().includes(filter.toLowerCase()));
  const cell = (key, value) => (value ? [f.as(kindOf(key), value[1]), " ", h("small", {}, `step ${f.count(value[0])}`)] : "");
  const head = h("tr", {}, h("th", { scope: "col" }, "metric, last value"), names.map((name) => h("th", { scope: "col" }, name)));
  return h("div", { class: "scroll card" }, h("table", { class: "compared" }, h("thead", {}, head), h("tbody", {}, kept.map(({ key, values }) => h("tr", {}, h("th", { scope: "row" }, safe(key)), values.map((value) => h("td", {}, cell(key, value))))))));
}

export async function show(context) {
  const chosen = (context.query.runs ?? "0").split(",").map(Number);
  if (!chosen.length || chosen.some((run) => !(run in context.runs))) throw new Error(`The runs must be some of 0..${context.runs.length - 1}, got ${context.query.runs}; choose them below the title.`);
  const names = chosen.map((run) => safe(context.runs[run].name));
  let filter = context.query.filter ?? "";
  let store = EG.makeStore();
  let runs = [];
  let comparison = null;
  const [curves, table] = [h("div", {}), h("div", {})];

  async function read() {
    [comparison, runs] = await Promise.all([
      get("compare", { runs: chosen.join(",") }),
      Promise.all(chosen.map(async (run, i) => ({ name: names[i], ...(await get(`runs/${run}/metrics`)), ...(await get(`runs/${run}/evaluations`)) }))),
    ]);
  }

  function draw() {
    store = renewed(store);
    const all = charts(runs, store, filter).flatMap(([, list]) => list);
    const isFew = !filter && all.length > 12;
    const nameOf = (made) => made.querySelector("h3").textContent;
    const basic = (made) => /^success, /.test(nameOf(made)) || BASICS.has(nameOf(made));
    const first = isFew ? all.filter(basic) : all;
    const rest = isFew ? all.filter((made) => !basic(made)) : [];
    const grid = (list) => h("div", { class: "grid" }, list);
    replace(curves, first.length ? grid(first) : h("p", { class: "muted" }, "No metric has this name."), rest.length ? h("details", { class: "more" }, h("summary", {}, f.plural(rest.length, "more metric")), grid(rest)) : null);
    replace(table, metrics(comparison, names, filter));
  }

  await read();
  draw();
  context.onPoll = async () => {
    await read();
    draw();
  };
  const soon = debounced((value) => {
    filter = value;
    context.setQuery({ runs: chosen.join(","), filter });
    draw();
  });
  const boxes = context.runs.map((run, i) => {
    const others = chosen.includes(i) ? chosen.filter((other) => other !== i) : [...chosen, i];
    const go = () => (location.hash = `#/compare?runs=${others.join(",")}`);
    const color = chosen.includes(i) ? EG.palette.series(chosen.indexOf(i)) : "var(--rule)";
    return h("label", { class: "key" }, h("input", { type: "checkbox", checked: chosen.includes(i), disabled: chosen.length === 1 && chosen.includes(i), on: { change: go } }), h("i", { class: "dot", style: { background: color } }), link(`run/${i}`, {}, safe(run.name)));
  });
  return [
    h("header", {}, h("p", { class: "overline" }, "compare"), h("h1", {}, names.join(" and "))),
    h("div", { class: "controls" }, boxes, field("Metrics", h("input", { type: "search", "aria-label": "Filter metrics", value: filter, on: { input: (event) => soon(event.target.value) } }))),
    curves,
    h("section", {}, h("h2", {}, "Settings that differ"), settings(comparison, names)),
    h("section", {}, h("h2", {}, "Metrics"), table),
  ];
}
