// One tree: drawn, with the node that was chosen beside it, and a replay of how it grew.
import { get } from "./api.js";
import { options } from "./episode.js";
import { drawTree } from "./treedrawing.js";
import { errorBox, f, facts, field, h, link, replace, safe } from "./ui.js";

const { choice } = EG.dom;
const REPLAY_MS = 6000;
const FRAME_MS = 60;
const BUDGETS = [
  ["tokens_generated", "generated tokens", f.count],
  ["env_steps", "env steps", f.count],
  ["tool_calls", "tool calls", f.count],
  ["seconds", "seconds", (value) => f.fixed(value, 1)],
];

// What had been spent when each node was recorded.
function spentSoFar(nodes) {
  const sums = Object.fromEntries(BUDGETS.map(([key]) => [key, 0]));
  return nodes.map(({ cost }) => {
    for (const [key] of BUDGETS) sums[key] += cost[key] ?? 0;
    return { ...sums };
  });
}

function replayBar(tree, drawing) {
  const total = tree.nodes.length;
  const spent = spentSoFar(tree.nodes);
  const slider = h("input", { type: "range", min: 1, max: total, value: String(total), "aria-label": "Nodes recorded so far", class: "replay" });
  const button = h("button", { type: "button", class: "play" }, "\u25b6 Replay");
  const told = h("div", { class: "budget", role: "status" });
  let timer = 0;

  function show(count) {
    slider.value = String(count);
    drawing.reveal(count);
    const all = spent[total - 1];
    const bars = BUDGETS.filter(([key]) => all[key] > 0).map(([key, name, text]) =>
      h("span", { class: "spent" }, h("progress", { max: all[key], value: spent[count - 1][key], "aria-label": name }), h("b", {}, text(spent[count - 1][key])), ` of ${text(all[key])} ${name}`),
    );
    replace(told, h("span", {}, h("b", {}, f.count(count)), ` of ${f.plural(total, "node")}`), bars);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    button.textContent = "\u25b6 Replay";
  }

  function toggle() {
    if (timer) return stop();
    const perFrame = Math.max(1, (total * FRAME_MS) / REPLAY_MS);
    let at = Number(slider.value) >= total ? 1 : Number(slider.value);
    button.textContent = "\u275a\u275a Pause";
    show(Math.round(at));
    timer = setInterval(() => {
      at = Math.min(total, at + perFrame);
      show(Math.round(at));
      if (at >= total || !slider.isConnected) stop();
    }, Math.max(FRAME_MS, REPLAY_MS / total / 2));
    return undefined;
  }

  slider.addEventListener("input", () => {
    stop();
    show(Number(slider.value));
  });
  button.addEventListener("click", toggle);
  show(total);
  return { element: h("div", { class: "controls replay-bar" }, button, slider, told), toggle };
}

function prunedList(model, goTo) {
  const pruned = model.items.filter(({ kind }) => kind === "pruned");
  if (!pruned.length) return null;
  const rows = pruned.map(({ index, title, node }) => h("li", {}, h("button", { type: "button", class: "link", on: { click: () => goTo(index) } }, `node ${index}, ${title}`), " ", safe(node.stats.pruned)));
  return h("details", { class: "more" }, h("summary", {}, `${f.plural(pruned.length, "pruned branch", "pruned branches")}, with the reason`), h("ul", { class: "pruned" }, rows));
}

export async function show(context) {
  const { run, query } = context;
  const name = { source: query.source, step: query.step, tree: query.tree };
  const tree = await get(`runs/${run}/tree`, name);
  const model = EG.treeModel.of(tree);
  const pane = h("div", { class: "episode-pane node-pane", tabindex: 0, role: "region", "aria-label": "Chosen node" });
  const legend = h("div", {});
  const hasStats = tree.nodes.some(({ stats }) => stats);
  let selected = Math.min(Math.max(0, Number(query.node ?? 0) || 0), tree.nodes.length - 1);
  EG.tokens.watch(pane);
  const room = Math.min(1264, innerWidth - 56) * (innerWidth > 900 ? 0.575 : 1);
  const drawing = drawTree(model, room, select);
  const replay = replayBar(tree, drawing);

  async function select(index) {
    selected = index;
    drawing.select(index);
    context.setQuery({ ...name, node: index });
    const item = model.items[index];
    try {
      if (!item.isWhole) {
        const content = await get(`runs/${run}/node`, { ...name, node: index });
        item.node.content = { ...content, summary: item.node.content.summary };
        item.isWhole = true;
      }
      if (selected === index) drawPane();
    } catch (error) {
      replace(pane, errorBox(error));
    }
  }

  function drawPane() {
    const item = model.items[selected];
    EG.data.scaleTo(item.node.content.segments);
    pane.dataset.coloring = options.view === "tokens" ? options.coloring : "origin";
    replace(pane, EG.node.render(model, selected, { ...options, scope: "node" }, select));
    const cut = item.node.content.segments.some(({ num_tokens, token_ids }) => num_tokens > token_ids.length);
    if (cut) pane.append(h("p", { class: "hint" }, "This node is long: its episode shows the rest."));
    pane.append(h("p", { class: "links" }, leafLinks(item)));
    replace(legend, options.view === "tokens" ? EG.tokens.legend(options.coloring) : null);
    pane.scrollTop = 0;
  }

  // The episode that ended here, if one did.
  function leafLinks({ node, index }) {
    return node.ending && node.num_episodes ? [link(`run/${run}/episode`, { ...name, leaf: index }, "Episode that ended here")] : null;
  }

  const set = (key) => (value) => {
    options[key] = value;
    drawPane();
  };
  const colorings = [["value", "Value"], ["outcome", "Mean reward"], ["advantage", "Advantage"]].filter(([key]) => key !== "value" || hasStats);
  let coloring = query.color ?? (hasStats ? "value" : "outcome");
  drawing.color(coloring);
  drawing.drawing.addEventListener("keydown", (event) => {
    if (!/^Arrow/.test(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = drawing.neighbour(selected, event.key);
    if (next !== null) select(next);
  });
  context.keys = { " ": replay.toggle };
  const pruned = model.items.filter(({ kind }) => kind === "pruned").length;
  requestAnimationFrame(() => {
    drawing.fit();
    select(selected);
    if (document.activeElement === document.body) drawing.drawing.focus({ preventScroll: true });
  });
  return [
    h("header", {}, h("p", { class: "overline" }, "tree"), h("h1", {}, safe(tree.task_id))),
    facts([
      ["tree", tree.tree_id],
      ["env", tree.env_id],
      ["sampled", `${tree.source}, step ${f.count(Number(tree.step))}`],
      ["size", `${f.plural(tree.nodes.length, "node")}, ${f.plural(tree.nodes[0].num_episodes, "episode")}, ${f.count(pruned)} pruned`],
      ["spent", EG.node.cost(tree.cost)],
    ]),
    tree.dropped ? h("p", { class: "why" }, `The group was dropped from training: ${f.keyName(tree.dropped)}.`) : null,
    tree.nodes[0].stats?.shortfall ? h("p", { class: "why" }, safe(tree.nodes[0].stats.shortfall)) : null,
    h(
      "div",
      { class: "controls" },
      choice("Nodes", colorings, coloring, (value) => drawing.color((coloring = value))),
      drawing.legend,
      h("span", { class: "choice" }, h("button", { type: "button", "aria-label": "Smaller", on: { click: () => drawing.zoom(0.8) } }, "\u2212"), h("button", { type: "button", on: { click: drawing.fit } }, "Fit"), h("button", { type: "button", "aria-label": "Larger", on: { click: () => drawing.zoom(1.25) } }, "+")),
      h("span", { class: "hint" }, `size: ${hasStats ? "visits" : "episodes below"}; replay: in the order of the record, branch by branch`),
    ),
    replay.element,
    h("div", { class: "tree-page-grid" }, drawing.element, h("div", { class: "node-column" }, h("div", { class: "controls" }, choice("Show", [["tokens", "Tokens"], ["messages", "Messages"]], options.view, set("view")), choice("Colour by", EG.tokens.colorings, options.coloring, set("coloring"))), legend, pane)),
    prunedList(model, select),
  ];
}
