// Groups of episodes that share a baseline: which have a spread of rewards, and one with its members side by side.
import { get } from "./api.js";
import { asker, controls as episodeControls, draw as drawEpisode } from "./episode.js";
import { advantage, debounced, episodeQuery, errorBox, f, facts, field, h, link, pager, replace, reward, safe, table, to } from "./ui.js";

const LIMIT = 50;
const MAX_MEMBERS = 64;
const MAX_SIDE_BY_SIDE = 4;

const COLUMNS = [
  { key: "step", name: "step", sort: "step", class: "num", cell: ({ step }) => f.count(step) },
  { key: "source", name: "source", cell: ({ source }) => safe(source) },
  { key: "task", name: "task", cell: ({ task_id }) => h("b", {}, safe(task_id)) },
  { key: "episodes", name: "episodes", sort: "episodes", class: "num", cell: ({ episodes, valid }) => (valid < episodes ? `${valid} valid of ${episodes}` : String(episodes)) },
  { key: "mean", name: "mean reward", sort: "mean", class: "num", cell: ({ mean }) => reward(mean) },
  { key: "spread", name: "spread", title: "largest minus smallest valid reward", sort: "spread", class: "num", cell: ({ spread }) => (spread === null ? "" : spread === 0 ? h("span", { class: "warn" }, "none") : f.number(spread)) },
  { key: "dropped", name: "dropped", cell: ({ dropped }) => (dropped ? h("span", { class: "warn" }, f.keyName(dropped)) : "") },
];

export async function show(context) {
  const { run } = context;
  const list = h("div", {});
  const count = h("p", { class: "found muted", role: "status" });

  async function read() {
    const { query } = context;
    try {
      const { groups, total } = await get(`runs/${run}/groups`, { ...query, limit: LIMIT }, context.abort.signal);
      const offset = Number(query.offset ?? 0);
      count.textContent = f.plural(total, "group");
      const href = ({ group }) => to(`run/${run}/group`, { name: group });
      const move = (target) => change({ offset: target });
      context.keys = { "[": () => offset > 0 && move(Math.max(0, offset - LIMIT)), "]": () => offset + LIMIT < total && move(offset + LIMIT) };
      replace(list, groups.length ? table(COLUMNS, groups, { sort: query.sort, descending: query.descending === "true", onSort: sortBy, href, label: "Groups" }) : h("p", { class: "muted card empty" }, "No group fits."), pager(offset, LIMIT, total, move));
    } catch (error) {
      if (error.name !== "AbortError") replace(list, errorBox(error));
    }
  }

  function sortBy(key) {
    const { sort, descending } = context.query;
    change(sort !== key ? { sort: key, descending: "true", offset: "" } : { sort: descending === "true" ? key : "", descending: descending === "true" ? "false" : "", offset: "" });
  }

  function change(values) {
    context.setQuery(Object.fromEntries(Object.entries({ ...context.query, ...values }).filter(([, value]) => value !== "" && value !== 0)));
    read();
  }

  const soon = debounced((task) => change({ task, offset: "" }));
  const choose = (key, name, all) => field(name, h("select", { "aria-label": name, on: { change: (event) => change({ [key]: event.target.value, offset: "" }) } }, all.map(([value, text]) => h("option", { value, selected: value === (context.query[key] ?? "") }, text))));
  const controls = h(
    "div",
    { class: "controls" },
    field("Task", h("input", { type: "search", "aria-label": "Task", placeholder: "part of its id", value: context.query.task ?? "", on: { input: (event) => soon(event.target.value.trim()) } })),
    choose("source", "Source", [["", "all"], ...Object.keys(context.runs[run].sources).map((name) => [name, name])]),
    choose("spread", "Spread", [["", "any"], ["some", "rewards differ"], ["none", "all rewards equal"]]),
  );
  await read();
  return [
    h("header", {}, h("p", { class: "overline" }, link(`run/${run}`, {}, safe(context.runs[run].name))), h("h1", {}, "Groups")),
    h("p", { class: "note" }, "Episodes of one task in one step share a baseline. Where all rewards are equal, the advantages are 0 and the group teaches nothing."),
    controls,
    count,
    list,
  ];
}

const MEMBERS = [
  { key: "chosen", name: "", cell: ({ isChosen, toggle, label }) => h("input", { type: "checkbox", checked: isChosen, "aria-label": label, on: { change: toggle } }) },
  { key: "member", name: "member", cell: (row) => link(`run/${row.run}/episode`, episodeQuery(row), row.label) },
  { key: "answer", name: "last action", cell: ({ answer }) => h("span", { class: "clipped" }, safe(answer)) },
  { key: "ending", name: "ending", cell: ({ ending }) => EG.episode.badge(ending) },
  { key: "reward", name: "reward", class: "num", cell: ({ reward: value }) => reward(value) },
  { key: "difference", name: "minus mean", title: "reward minus the mean of the valid rewards", class: "num", cell: ({ reward: value, mean }) => (value === null ? "" : advantage(value - mean)) },
  { key: "advantage", name: "advantage", title: "as recorded by the training", class: "num", cell: ({ advantage: value }) => advantage(value) },
  { key: "turns", name: "turns", class: "num", cell: ({ turns }) => f.count(turns) },
  { key: "tokens", name: "tokens", class: "num", cell: ({ tokens }) => f.count(tokens) },
];

// One group: its members in a table, and up to four of them side by side.
export async function showOne(context) {
  const { run, query } = context;
  const found = await get(`runs/${run}/episodes`, { group: query.name, limit: MAX_MEMBERS });
  if (!found.total) throw new Error(`The group must be one of the run, got ${query.name}; choose one from the table of groups.`);
  const rows = found.episodes;
  const values = rows.map(({ reward: value }) => value).filter((value) => value !== null);
  const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
  const deviation = values.length > 1 ? Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1)) : null;
  const labelOf = (row) => `${row.tree_id.split("/").pop()}${rows.filter(({ tree_id }) => tree_id === row.tree_id).length > 1 ? `, node ${row.leaf}` : ""}`;
  let chosen = (query.show ? query.show.split(",").map(Number) : [0, 1]).filter((index) => index in rows);
  const panes = h("div", { class: "side-by-side" });
  const list = h("div", {});
  const loaded = new Map();

  async function drawPanes() {
    panes.style.setProperty("--columns", String(chosen.length));
    const made = await Promise.all(chosen.map(async (index) => {
      const name = episodeQuery(rows[index]);
      if (!loaded.has(index)) loaded.set(index, await get(`runs/${run}/episode`, name));
      const pane = h("div", { class: "episode-pane", role: "region", "aria-label": `Member ${labelOf(rows[index])}` });
      EG.tokens.watch(pane);
      drawEpisode(pane, loaded.get(index), asker(run, name));
      return pane;
    }));
    replace(panes, made);
  }

  function draw() {
    const full = rows.map((row, index) => ({
      ...row,
      run,
      mean,
      label: labelOf(row),
      isChosen: chosen.includes(index),
      toggle: () => {
        chosen = chosen.includes(index) ? chosen.filter((other) => other !== index) : [...chosen, index].slice(-MAX_SIDE_BY_SIDE);
        context.setQuery({ name: query.name, show: chosen.join(",") });
        draw();
        drawPanes();
      },
    }));
    replace(list, table(MEMBERS, full, { label: "Members" }));
  }

  draw();
  await drawPanes();
  const [{ task_id, source, step, question, dropped }] = rows;
  return [
    h("header", {}, h("p", { class: "overline" }, link(`run/${run}/groups`, {}, "group")), h("h1", {}, safe(task_id)), question ? h("p", { class: "note" }, safe(question)) : null),
    facts([["sampled", `${source}, step ${f.count(step)}`], ["episodes", f.count(found.total)], ["mean reward", values.length ? f.number(mean) : "no valid reward"], ["standard deviation", deviation === null ? "" : f.number(deviation)]]),
    dropped ? h("p", { class: "why" }, `Dropped from training: ${f.keyName(dropped)}.`) : null,
    values.length > 1 && Math.max(...values) === Math.min(...values) ? h("p", { class: "why" }, "All valid rewards are equal: no advantage follows from this group.") : null,
    found.total > rows.length ? h("p", { class: "why" }, `The first ${rows.length} of ${f.count(found.total)} members are shown.`) : null,
    list,
    h("p", { class: "hint" }, "The advantage is as recorded; where it differs from reward minus mean, the method has another baseline or scale. Tick members to see them side by side."),
    episodeControls(drawPanes),
    panes,
  ];
}
