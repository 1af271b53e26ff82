// One episode: messages or tokens, rewards by turn, and where to go from it.
import { get } from "./api.js";
import { errorBox, episodeQuery, f, h, link, replace, safe, to } from "./ui.js";

const { choice } = EG.dom;
export const options = { view: "tokens", coloring: "origin" };

// Buttons under what was cut; each press brings the next piece. `ask(turn, field, segment, start)` returns it.
export function addRests(pane, episode, ask, redraw) {
  const items = [...pane.querySelectorAll(".segment")];
  if (options.view === "tokens") {
    const segments = [...EG.data.tokensOf(episode)];
    const turns = [[-1, episode.prompt], ...episode.turns.map((turn, index) => [index, turn.segments])].flatMap(([turn, list]) => list.map((_, i) => [turn, i]));
    segments.forEach((segment, number) => {
      const have = segment.token_ids.length;
      if (have >= (segment.num_tokens ?? have)) return;
      const [turn, place] = turns[number];
      const row = items[number];
      row.querySelector(".gutter small").textContent = f.count(segment.num_tokens);
      row.append(more(`${f.count(segment.num_tokens - have)} more tokens`, async () => {
        const next = await ask(turn, "segment", place, have);
        for (const [key, column] of Object.entries(next)) if (Array.isArray(column)) segment[key] = segment[key].concat(column);
      }));
    });
  } else {
    episode.turns.forEach((turn, index) => {
      for (const [name, kind] of [["action", "policy"], ["observation", "tool"]]) {
        const left = (turn[`${name}_characters`] ?? 0) - turn[name].length;
        const row = pane.querySelectorAll("[data-turn]")[index]?.querySelector(`.segment.${kind}`);
        if (left <= 0 || !row) continue;
        row.append(more(`${f.count(left)} more characters`, async () => {
          turn[name] += (await ask(index, name, 0, turn[name].length)).text;
        }));
      }
    });
  }

  function more(text, act) {
    const button = h("button", { type: "button", class: "rest" }, text);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await act();
        redraw();
      } catch (error) {
        button.replaceWith(errorBox(error));
      }
    });
    return button;
  }
}

// An episode in a pane of its own, with controls above it where `isAlone`.
export function draw(pane, episode, ask) {
  EG.data.scaleTo([...EG.data.tokensOf(episode)]);
  pane.dataset.coloring = options.view === "tokens" ? options.coloring : "origin";
  replace(pane, EG.episode.render(episode, options));
  [...pane.querySelectorAll("article.turn")].slice(-episode.turns.length || Infinity).forEach((article, i) => (article.dataset.turn = i));
  addRests(pane, episode, ask, () => draw(pane, episode, ask));
}

export function controls(redraw) {
  const set = (key) => (value) => {
    options[key] = value;
    redraw();
  };
  return h(
    "div",
    { class: "controls" },
    choice("Show", [["tokens", "Tokens"], ["messages", "Messages"]], options.view, set("view")),
    choice("Colour by", EG.tokens.colorings, options.coloring, set("coloring")),
  );
}

export const asker = (run, query, path = "episode/part") => (turn, field, segment, start) => get(`runs/${run}/${path}`, { ...query, turn, field, segment, start });

// The episode before or after this one in the table it was opened from.
async function neighbour(context, step) {
  const { run, query } = context;
  const at = Number(query.at) + step;
  if (!(at >= 0)) return null;
  const { episodes } = await get(`runs/${run}/episodes`, { ...Object.fromEntries(new URLSearchParams(query.from)), offset: at, limit: 1 });
  return episodes.length ? to(`run/${run}/episode`, { ...episodeQuery(episodes[0]), at, from: query.from }) : null;
}

export async function show(context) {
  const { run, query } = context;
  const name = { source: query.source, step: query.step, tree: query.tree, leaf: query.leaf };
  const episode = await get(`runs/${run}/episode`, name);
  const pane = h("div", { class: "episode-pane whole", role: "region", "aria-label": "Episode" });
  EG.tokens.watch(pane);
  const legend = h("div", {});
  const ask = asker(run, name);
  const redraw = () => {
    draw(pane, episode, ask);
    replace(legend, options.view === "tokens" ? EG.tokens.legend(options.coloring) : null);
  };
  redraw();
  const links = [
    link(`run/${run}/group`, { name: episode.group }, "Group"),
    link(`run/${run}/tree`, { source: query.source, step: query.step, tree: query.tree, node: query.leaf }, "Tree"),
    link(`run/${run}/task`, { source: query.source, task: episode.task_id }, "Task at every step"),
    link("env", { id: episode.env_id, run }, "Environment"),
  ];
  const hasList = query.at !== undefined;
  if (hasList) {
    const go = (step) => async () => {
      const target = await neighbour(context, step);
      if (target) location.hash = target.slice(1);
    };
    context.keys = { "[": go(-1), "]": go(1) };
    links.unshift(link(`run/${run}/episodes`, Object.fromEntries(new URLSearchParams(query.from)), "\u2039 Table"));
    links.push(h("span", { class: "hint" }, h("kbd", {}, "["), " ", h("kbd", {}, "]"), " previous, next"));
  }
  return [
    h("header", {}, h("p", { class: "overline" }, "episode"), h("h1", {}, safe(`${episode.task_id} #${Number(episode.tree_id.split("/").pop()) || 0}`)), episode.question ? h("p", { class: "note" }, safe(episode.question)) : null),
    h("p", { class: "links" }, links),
    episode.dropped ? h("p", { class: "why" }, `The group was dropped from training: ${f.keyName(episode.dropped)}.`) : null,
    controls(redraw),
    legend,
    pane,
  ];
}
