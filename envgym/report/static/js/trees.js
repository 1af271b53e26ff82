// The trees of a run: choose one, walk through its outline, read the node beside it. Key: / filters.
EG.trees = (() => {
  const { h, replace, section, select, choice } = EG.dom;
  const f = EG.format;
  const NOTE = "A row is a node: a turn, or the part of one up to a fork. Rows are indented where the tree branches. Any tree of the run: envgym view RUN --tree ID.";

  const state = { model: null, coloring: "origin", view: "tokens", scope: "node", text: "", choice: "all", selected: 0 };
  const about = h("dl", { class: "facts tree-facts" });
  const pane = h("div", { class: "episode-pane node-pane", tabindex: 0, role: "region", "aria-label": "Chosen node" });
  const legend = h("div", {});
  const count = h("span", { class: "muted found", role: "status" });
  const input = h("input", { type: "search", placeholder: "words, ending or reason", "aria-label": "Filter nodes", on: { input: () => soon(() => refine("text", input.value)), keydown: onFilterKey } });
  const map = EG.treeMap.make((index) => outline.select(index));
  const outline = EG.outline.make((index) => {
    state.selected = index;
    map.mark(EG.treeModel.path(state.model, index));
    draw();
    pane.scrollTop = 0;
  });

  function draw() {
    pane.dataset.coloring = state.coloring;
    replace(legend, state.view === "tokens" ? EG.tokens.legend(state.coloring) : null);
    replace(pane, EG.node.render(state.model, state.selected, state, (index) => { outline.select(index); outline.focus(); }));
  }

  function facts(tree) {
    const pruned = tree.nodes.filter(({ stats }) => stats && stats.pruned !== null).length;
    return [
      ["tree", document.body.dataset.view === "tree" ? "" : tree.tree_id],
      ["env", tree.env_id],
      ["task", `${tree.task_id} (${tree.split})`],
      ["seed", tree.seed],
      ["sampled", `${tree.source}, step ${f.count(tree.step)}`],
      ["size", `${f.plural(tree.nodes.length, "node")}, ${f.plural(tree.nodes[0].num_episodes, "episode")}, ${f.count(pruned)} pruned`],
      ["spent", EG.node.cost(tree.cost)],
      ["dropped", tree.dropped && f.keyName(tree.dropped)],
    ].filter(([, value]) => value);
  }

  function show(tree) {
    state.model = EG.treeModel.of(tree);
    replace(about, facts(tree).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, EG.tokens.safe(value)))));
    map.show(state.model);
    outline.show(state.model);
    refine("text", input.value);
  }

  function refine(key, value) {
    state[key] = value;
    const found = EG.treeModel.find(state.model, state.text, state.choice);
    outline.filter(found);
    count.textContent = found ? `${f.count(found.size)} of ${f.plural(state.model.items.length, "node")}` : "";
  }

  // Once for letters that are typed in a row.
  let timer = 0;
  function soon(act) {
    clearTimeout(timer);
    timer = setTimeout(act, 120);
  }

  function onFilterKey(event) {
    if (event.key === "Escape") {
      input.value = "";
      refine("text", "");
    } else if (event.key !== "Enter" && event.key !== "ArrowDown") return;
    clearTimeout(timer);
    if (input.value !== state.text) refine("text", input.value);
    event.preventDefault();
    outline.focus();
  }

  function onKey(event) {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    input.focus();
    input.select();
  }

  function controls(trees) {
    const redraw = (key) => (value) => {
      state[key] = value;
      draw();
    };
    const names = trees.map((tree, i) => [String(i), `${tree.source}, step ${f.count(tree.step)}: ${tree.task_id} (${f.plural(tree.nodes.length, "node")})`]);
    return [
      h(
        "div",
        { class: "controls" },
        trees.length > 1 ? select("Tree", names, "0", (i) => show(trees[Number(i)])) : null,
        h("label", { class: "field" }, h("span", {}, "Filter"), input),
        select("Only", EG.treeModel.choices.map((name) => [name, name]), "all", (name) => refine("choice", name)),
        h("button", { type: "button", on: { click: () => outline.openAll(true) } }, "Expand all"),
        h("button", { type: "button", on: { click: () => outline.openAll(false) } }, "Collapse all"),
        count,
      ),
      h(
        "div",
        { class: "controls" },
        choice("Read", [["node", "Node"], ["path", "From the start"]], "node", redraw("scope")),
        choice("Show", [["tokens", "Tokens"], ["messages", "Messages"]], "tokens", redraw("view")),
        choice("Colour by", EG.tokens.colorings, "origin", redraw("coloring")),
        h("span", { class: "hint" }, ["\u2191", "\u2193", "\u2190", "\u2192"].map((key) => h("kbd", {}, key)), " walk, ", h("kbd", {}, "Enter"), " open or close, ", h("kbd", {}, "*"), " open all below, ", h("kbd", {}, "/"), " filter"),
      ),
    ];
  }

  function browser(trees, scope) {
    EG.tokens.watch(pane);
    scope.addEventListener("keydown", onKey);
    const parts = [controls(trees), legend, h("div", { class: "tree-browser" }, h("div", { class: "side" }, map.element, outline.element), pane)];
    show(trees[0]);
    return parts;
  }

  // A section of the report.
  function render({ trees }) {
    if (!trees.length) return null;
    const made = section("trees", "Trees", NOTE, about);
    made.append(...browser(trees, made).flat());
    return made;
  }

  // A page of its own.
  function page({ trees, meta }) {
    const [{ tree_id, source, step }] = trees;
    const name = EG.tokens.safe(source === "train" ? tree_id : `${tree_id}, step ${f.count(step)}`);
    const made = h("header", { id: "trees", class: "tree-page" }, h("p", { class: "overline" }, `envgym tree, run ${meta.name}`), h("h1", {}, name), about);
    made.append(...browser(trees, document).flat());
    requestAnimationFrame(() => {
      if (document.activeElement === document.body) outline.focus(); // else the reader has begun to type already
    });
    return made;
  }

  return { render, page };
})();
