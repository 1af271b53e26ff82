// The browser of episodes: a filtered list in parts, and the chosen one beside it. Keys: j next, k previous.
EG.episodes = (() => {
  const { h, replace, section, select, choice } = EG.dom;
  const f = EG.format;
  const { report } = EG.data;
  const all = report.episodes;
  const PART = 100;
  const LETTERS_APART_MS = 250;

  const REWARDS = {
    all: () => true,
    positive: (episode) => episode.reward !== null && episode.reward > 0,
    zero: (episode) => episode.reward === 0,
    negative: (episode) => episode.reward !== null && episode.reward < 0,
    invalid: (episode) => episode.reward === null,
  };
  const ORDERS = {
    given: ["as recorded", null],
    worst: ["failures first", (a, b) => (a.reward ?? -Infinity) - (b.reward ?? -Infinity) || b.step - a.step || 0],
    best: ["highest reward first", (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || 0],
    newest: ["latest step first", (a, b) => b.step - a.step],
  };

  // Of an evaluation one wants to know what went wrong; a training run is read from its beginning.
  const isEvaluation = all.every(({ source }) => source !== "train");
  const state = { text: "", task: null, source: "all", ending: "all", reward: "all", order: isEvaluation ? "worst" : "given", chosen: null, coloring: "origin", view: "tokens" };
  const list = h("ol", { class: "episode-list", tabindex: 0, "aria-label": "Episodes", on: { keydown: onListKey } });
  const pane = h("div", { class: "episode-pane", "aria-live": "off" });
  const found = h("p", { class: "muted found", role: "status" });
  const legend = h("div", {});
  const pager = EG.pager.make(PART, "episode", (part) => {
    replace(list, part.map(row));
    list.scrollTop = 0;
    mark();
  });
  let shown = [];

  const facts = (episode) => `${EG.episode.name(episode)} ${episode.env_id} step ${episode.step} ${episode.question} ${episode.error}`.toLowerCase();

  function fits(episode, words, texts) {
    const isSaid = (word) => facts(episode).includes(word) || (texts !== null && texts[episode.index].includes(word));
    return (
      words.every(isSaid) &&
      (state.task === null || episode.task_id === state.task) &&
      (state.source === "all" || episode.source === state.source) &&
      (state.ending === "all" || episode.ending === state.ending) &&
      REWARDS[state.reward](episode)
    );
  }

  function row(episode) {
    const how = episode.ending === "TERMINATED" ? "" : f.ending(episode.ending);
    const said = episode.answer ? `\u2192 ${episode.answer}` : "";
    return h(
      "li",
      { data: { id: episode.id }, on: { click: () => choose(episode) } },
      h("i", { class: "dot", style: { background: EG.palette.ending(episode.ending) } }),
      h("b", {}, EG.tokens.safe(EG.episode.name(episode))),
      h("span", { class: "num" }, EG.episode.rewardText(episode.reward)),
      h("span", { class: "asked" }, EG.tokens.safe(episode.question)),
      h("small", { class: "said" }, EG.tokens.safe(said)),
      h("small", {}, [isEvaluation ? "" : `${episode.source}, step ${f.count(episode.step)}`, how].filter(Boolean).join(", ")),
    );
  }

  // How many of how many, wherever a part is meant.
  function countText() {
    const sources = [...new Set(all.map(({ source }) => source))].filter((name) => state.source === "all" || name === state.source);
    const held = all.filter(({ source }) => sources.includes(source)).length;
    const recorded = Math.max(held, sources.reduce((sum, name) => sum + (report.num_recorded[name] || 0), 0));
    const fitting = shown.length === held ? "" : `${f.count(shown.length)} found; `;
    return `${fitting}${held < recorded ? `${f.count(held)} of ${f.plural(recorded, "episode")} in this report` : f.plural(recorded, "episode")}`;
  }

  function show(words, texts) {
    shown = all.filter((episode) => fits(episode, words, texts));
    const [, compare] = ORDERS[state.order];
    if (compare) shown = shown.slice().sort(compare);
    found.textContent = countText();
    pager.show(shown, shown.indexOf(state.chosen));
    if (!shown.includes(state.chosen)) choose(shown[0] || null);
  }

  // What stands in the list is looked through at once; what was said, as soon as it is inflated.
  let asked = 0;
  async function filter() {
    asked += 1;
    const mine = asked;
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    show(words, null);
    if (!words.length) return;
    const texts = await EG.data.allTexts((count) => {
      if (mine === asked) found.textContent = `searching, ${f.count(count)} of ${f.plural(all.length, "episode")}`;
    });
    if (mine === asked) show(words, texts);
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
    pager.reveal(episode);
    mark();
    pane.scrollTop = 0;
    return draw();
  }

  async function draw() {
    pane.dataset.coloring = state.coloring;
    replace(legend, state.view === "tokens" ? EG.tokens.legend(state.coloring) : null);
    const { chosen } = state;
    const whole = chosen && (await EG.data.whole(chosen));
    if (chosen !== state.chosen) return; // another was chosen meanwhile
    replace(pane, whole ? EG.episode.render(whole, state) : h("p", { class: "muted" }, "No episode fits these filters."));
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

  function onListKey(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    move(by);
  }

  const options = (key) => [["all", "all"], ...[...new Set(all.map((episode) => episode[key]))].map((name) => [name, key === "ending" ? f.ending(name) : name])];
  const update = (key) => (value) => {
    state[key] = value;
    filter();
  };

  // Once for letters that are typed in a row.
  let timer = 0;
  function onInput(event) {
    clearTimeout(timer);
    timer = setTimeout(() => update("text")(event.target.value), LETTERS_APART_MS);
  }

  // The samples of one task alone, until the button is pressed.
  const ofTask = h("button", { type: "button", hidden: true, on: { click: () => showTask(null, "all") } });
  function showTask(task, source) {
    [state.task, state.source] = [task, source];
    ofTask.hidden = task === null;
    ofTask.textContent = `Task ${task} alone \u2715`;
    sources.querySelector("select").value = source;
    filter();
    if (task !== null) document.getElementById("episodes").scrollIntoView();
  }

  const sources = select("Source", options("source"), "all", update("source"));

  function filters() {
    return h(
      "div",
      { class: "controls" },
      h("label", { class: "field" }, h("span", {}, "Find"), h("input", { type: "search", placeholder: "words, task or step", on: { input: onInput } })),
      sources,
      select("Ending", options("ending"), "all", update("ending")),
      select("Reward", Object.keys(REWARDS).map((key) => [key, key]), "all", update("reward")),
      select("Order", Object.entries(ORDERS).map(([key, [name]]) => [key, name]), state.order, update("order")),
      ofTask,
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
      choice("Colour by", EG.tokens.colorings, "origin", redraw("coloring")),
      h("span", { class: "hint" }, h("kbd", {}, "j"), " next, ", h("kbd", {}, "k"), " previous. Point at a token for its details."),
    );
  }

  function render() {
    if (!all.length) return null;
    document.addEventListener("keydown", onKey);
    EG.tokens.watch(pane);
    filter();
    return section("episodes", "Episodes", null, filters(), views(), legend, h("div", { class: "browser" }, h("div", { class: "side" }, found, list, pager.element), pane));
  }

  // `drawn` is there when the chosen episode is.
  return { render, showTask, drawn: () => draw() };
})();
