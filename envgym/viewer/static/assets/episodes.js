// The table of episodes: searched, filtered, sorted, a page at a time. All of it stands in the address.
import { get, queryText } from "./api.js";
import { advantage, debounced, episodeQuery, errorBox, f, field, h, link, pager, replace, reward, safe, table, to } from "./ui.js";

const LIMIT = 50;
const RANGES = [
  ["reward", "Reward"],
  ["advantage", "Advantage"],
  ["turns", "Turns"],
  ["tokens", "Tokens"],
  ["tool_errors", "Tool errors"],
  ["step", "Step"],
];

export const taskCell = (row) =>
  h("div", { class: "task-cell" }, h("b", {}, safe(row.task_id)), row.question ? h("small", {}, safe(row.question)) : null, row.problem ? h("small", { class: "warn" }, safe(row.problem)) : null);

export const COLUMNS = [
  { key: "step", name: "step", sort: "step", class: "num", cell: ({ step }) => f.count(step) },
  { key: "source", name: "source", cell: ({ source }) => safe(source) },
  { key: "task", name: "task", sort: "task", cell: taskCell },
  { key: "answer", name: "last action", cell: ({ answer }) => h("span", { class: "clipped" }, safe(answer)) },
  { key: "ending", name: "ending", sort: "ending", cell: ({ ending, dropped }) => [EG.episode.badge(ending), dropped ? h("small", {}, `dropped: ${f.keyName(dropped)}`) : null] },
  { key: "reward", name: "reward", sort: "reward", class: "num", cell: ({ reward: value }) => reward(value) },
  { key: "advantage", name: "adv.", title: "mean advantage over the nodes of the episode", sort: "advantage", class: "num", cell: ({ advantage: value }) => advantage(value) },
  { key: "turns", name: "turns", sort: "turns", class: "num", cell: ({ turns }) => f.count(turns) },
  { key: "tokens", name: "tokens", title: "sampled tokens", sort: "tokens", class: "num", cell: ({ tokens }) => f.count(tokens) },
  { key: "tool_errors", name: "tool errors", sort: "tool_errors", class: "num", cell: ({ tool_errors }) => (tool_errors === null ? "" : f.count(tool_errors)) },
];

const numberOf = (query, key) => Number(query[key] ?? 0) || 0;

export async function show(context) {
  const { run } = context;
  const it = () => context.runs[run];
  const count = h("p", { class: "found muted", role: "status" });
  const list = h("div", {});
  let abort = new AbortController();

  async function read() {
    abort.abort();
    abort = new AbortController();
    const { query } = context;
    try {
      const started = performance.now();
      const found = await get(`runs/${run}/episodes`, { ...query, limit: LIMIT }, abort.signal);
      draw(found, performance.now() - started);
    } catch (error) {
      if (error.name !== "AbortError") replace(list, errorBox(error));
    }
  }

  function draw({ episodes, total, num_episodes, num_with_details }, ms) {
    const { query } = context;
    const reading = num_with_details < num_episodes ? `; questions, answers and tool errors of ${f.count(num_with_details)} are read so far` : "";
    count.textContent = `${f.count(total)} of ${f.plural(num_episodes, "episode")} in ${f.count(Math.round(ms))} ms${reading}`;
    const offset = numberOf(query, "offset");
    const { offset: _, ...rest } = query;
    const href = (row, index) => to(`run/${run}/episode`, { ...episodeQuery(row), at: offset + index, from: queryText(rest).slice(1) });
    const made = table(COLUMNS, episodes, { sort: query.sort, descending: query.descending === "true", onSort: sortBy, href, label: "Episodes" });
    const move = (to) => change({ offset: to });
    context.keys = { "[": () => offset > 0 && move(Math.max(0, offset - LIMIT)), "]": () => offset + LIMIT < total && move(offset + LIMIT) };
    replace(list, episodes.length ? made : h("p", { class: "muted card empty" }, num_episodes ? "No episode fits." : "No episode is saved yet."), pager(offset, LIMIT, total, move));
  }

  // A number sorts from the largest down first; again the other way; a third time as recorded.
  function sortBy(key) {
    const { query } = context;
    const isText = key === "task" || key === "ending";
    const orders = isText ? ["false", "true"] : ["true", "false"];
    const at = query.sort === key ? orders.indexOf(query.descending ?? "false") : -1;
    change(at < 1 ? { sort: key, descending: orders[at + 1], offset: "" } : { sort: "", descending: "", offset: "" });
  }

  function change(values) {
    const merged = { ...context.query, ...values };
    context.setQuery(Object.fromEntries(Object.entries(merged).filter(([, value]) => value !== "" && value !== 0)));
    read();
  }

  const soon = debounced((values) => change({ ...values, offset: "" }));

  function choose(key, name, options) {
    return field(name, h("select", { "aria-label": name, on: { change: (event) => change({ [key]: event.target.value, offset: "" }) } }, options.map(([value, text]) => h("option", { value, selected: value === (context.query[key] ?? "") }, text))));
  }

  function typed(key, name, attributes = {}) {
    return h("input", { type: "search", "aria-label": name, value: context.query[key] ?? "", ...attributes, on: { input: (event) => soon({ [key]: event.target.value.trim() }) } });
  }

  function range([key, name]) {
    const end = (side) => {
      const input = h("input", { type: "text", inputmode: "decimal", class: "bound", "aria-label": `${name}, ${side === "min" ? "at least" : "at most"}`, placeholder: side, value: context.query[`${side}_${key}`] ?? "" });
      input.addEventListener("input", () => {
        const text = input.value.trim().replace(",", ".").replace("\u2212", "-");
        const isNumber = text === "" || Number.isFinite(Number(text));
        input.setAttribute("aria-invalid", String(!isNumber));
        if (isNumber) soon({ [`${side}_${key}`]: text });
      });
      return input;
    };
    return h("span", { class: "field", role: "group", "aria-label": name }, h("span", {}, name), end("min"), end("max"));
  }

  const endings = [["", "any"], ["TRUNCATED", "truncated (all)"], ["ERROR", "error (all)"], ...it().endings.map((name) => [name, f.ending(name)])];
  const isFiltered = RANGES.some(([key]) => context.query[`min_${key}`] || context.query[`max_${key}`]);
  const controls = [
    h(
      "div",
      { class: "controls" },
      field("Search", typed("text", "Search episodes", { placeholder: "question, answer, id, reason" })),
      field("Task", typed("task", "Task", { placeholder: "part of its id" })),
      choose("source", "Source", [["", "all"], ...Object.keys(it().sources).map((name) => [name, name])]),
      choose("ending", "Ending", endings),
      choose("reward", "Reward", [["", "any"], ["valid", "valid"], ["invalid", "invalid"]]),
      context.query.group ? h("button", { type: "button", on: { click: () => change({ group: "" }) } }, `Group ${context.query.group} alone \u00d7`) : null,
    ),
    h("details", { class: "more ranges", open: isFiltered }, h("summary", {}, "Ranges"), h("div", { class: "controls" }, RANGES.map(range))),
  ];
  await read();
  let known = it().num_episodes + it().num_with_details;
  context.onPoll = () => {
    const now = it().num_episodes + it().num_with_details;
    if (now === known) return undefined;
    known = now;
    return document.activeElement?.closest("tr") ? undefined : read();
  };
  return [h("header", {}, h("p", { class: "overline" }, link(`run/${run}`, {}, safe(it().name))), h("h1", {}, "Episodes")), controls, count, list];
}
