// The browser of episodes: a filtered list, and the chosen one beside it. Keys: j next, k previous.
EG.episodes = (() => {
  const { h, replace, section, select, choice } = EG.dom;
  const f = EG.format;
  const all = EG.data.report.episodes;

  const REWARDS = {
    all: () => true,
    positive: (episode) => episode.reward !== null && episode.reward > 0,
    zero: (episode) => episode.reward === 0,
    negative: (episode) => episode.reward !== null && episode.reward < 0,
    invalid: (episode) => episode.reward === null,
  };
  const ORDERS = {
    given: null,
    newest: (a, b) => b.step - a.step,
    best: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
    worst: (a, b) => (a.reward ?? Infinity) - (b.reward ?? Infinity),
  };

  const state = { text: "", source: "all", ending: "all", reward: "all", order: "given", chosen: null, coloring: "origin", view: "tokens" };
  const list = h("ol", { class: "episode-list", tabindex: 0, "aria-label": "Episodes" });
  const pane = h("div", { class: "episode-pane", "aria-live": "off" });
  const found = h("p", { class: "muted found" });
  const legend = h("div", {});
  let shown = [];

  function fits(episode) {
    const text = `${episode.task_id} ${episode.env_id} step ${episode.step}`.toLowerCase();
    return (
      text.includes(state.text.toLowerCase()) &&
      (state.source === "all" || episode.source === state.source) &&
      (state.ending === "all" || episode.ending === state.ending) &&
      REWARDS[state.reward](episode)
    );
  }

  function row(episode) {
    return h(
      "li",
      { data: { id: episode.id }, on: { click: () => choose(episode) } },
      h("i", { class: "dot", style: { background: EG.palette.ending(episode.ending) } }),
      h("b", {}, episode.task_id),
      h("span", { class: "num" }, EG.episode.rewardText(episode.reward)),
      h("small", {}, `${episode.source}, step ${f.count(episode.step)}`),
      h("small", { class: "num" }, f.ending(episode.ending)),
    );
  }

  function filter() {
    shown = all.filter(fits);
    if (ORDERS[state.order]) shown = shown.slice().sort(ORDERS[state.order]);
    replace(list, shown.map(row));
    found.textContent = shown.length === all.length ? f.plural(all.length, "episode") : `${f.count(shown.length)} of ${f.plural(all.length, "episode")}`;
    if (!shown.includes(state.chosen)) choose(shown[0] || null);
    else mark();
  }

  function mark() {
    for (const item of list.children) {
      const current = state.chosen !== null && item.dataset.id === state.chosen.id;
      item.toggleAttribute("aria-current", current);
      if (!current) continue;
      // Scrolls the list alone, never the page.
      const [top, bottom] = [item.offsetTop, item.offsetTop + item.offsetHeight];
      if (top < list.scrollTop) list.scrollTop = top;
      else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
    }
  }

  function choose(episode) {
    state.chosen = episode;
    mark();
    draw();
    pane.scrollTop = 0;
  }

  function draw() {
    pane.dataset.coloring = state.coloring;
    replace(legend, state.view === "tokens" ? EG.tokens.legend(state.coloring) : null);
    replace(pane, state.chosen ? EG.episode.render(state.chosen, state) : h("p", { class: "muted" }, "No episode fits these filters."));
  }

  function move(by) {
    const next = shown[shown.indexOf(state.chosen) + by];
    if (next) choose(next);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
  }

  const options = (key) => [["all", "all"], ...[...new Set(all.map((episode) => episode[key]))].map((name) => [name, key === "ending" ? f.ending(name) : name])];
  const update = (key) => (value) => {
    state[key] = value;
    filter();
  };

  function filters() {
    return h(
      "div",
      { class: "controls" },
      h("label", { class: "field" }, h("span", {}, "Find"), h("input", { type: "search", placeholder: "task or step", on: { input: (event) => update("text")(event.target.value) } })),
      select("Source", options("source"), "all", update("source")),
      select("Ending", options("ending"), "all", update("ending")),
      select("Reward", Object.keys(REWARDS).map((key) => [key, key]), "all", update("reward")),
      select("Order", [["given", "as recorded"], ["newest", "latest step first"], ["best", "highest reward first"], ["worst", "lowest reward first"]], "given", update("order")),
    );
  }

  function views() {
    const redraw = (key) => (value) => {
      state[key] = value;
      draw();
    };
    return h(
      "div",
      { class: "controls" },
      choice("Show", [["tokens", "Tokens"], ["messages", "Messages"]], "tokens", redraw("view")),
      choice("Colour by", [["origin", "Origin"], ["advantage", "Advantage"], ["surprise", "Log-prob"]], "origin", redraw("coloring")),
      h("span", { class: "hint" }, h("kbd", {}, "j"), " next, ", h("kbd", {}, "k"), " previous. Point at a token for its details."),
    );
  }

  function render() {
    if (!all.length) return null;
    document.addEventListener("keydown", onKey);
    EG.tokens.watch(pane);
    filter();
    return section("episodes", "Sample episodes", null, filters(), views(), legend, h("div", { class: "browser" }, h("div", { class: "side" }, found, list), pane));
  }

  return { render };
})();
