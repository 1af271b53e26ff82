// One node of a tree: what is known of it, and its tokens, alone or from the start.
EG.node = (() => {
  const { h } = EG.dom;
  const f = EG.format;

  const COSTS = [
    ["tokens_generated", (value) => `${f.count(value)} generated`],
    ["tokens_prefilled", (value) => `${f.count(value)} prefilled`],
    ["tool_calls", (value) => f.plural(value, "tool call")],
    ["env_steps", (value) => f.plural(value, "env step")],
    ["seconds", f.seconds],
  ];

  function cost(spent) {
    const parts = COSTS.filter(([key]) => spent[key]).map(([key, text]) => text(spent[key]));
    return parts.length ? parts.join(", ") : "nothing";
  }

  function tokens(segments) {
    const count = (keep) => segments.reduce((sum, segment) => sum + keep(segment), 0);
    const all = count(({ token_ids }) => token_ids.length);
    if (!all) return null;
    const sampled = count(({ origin, token_ids }) => (origin === "POLICY" ? token_ids.length : 0));
    const versions = [...new Set(segments.map(({ policy_version }) => policy_version).filter((version) => version !== null))];
    const by = versions.length ? ` by policy version ${versions.join(", ")}` : "";
    return `${f.count(all)}: ${f.count(sampled)} sampled${by}, ${f.count(count(({ trained }) => trained.filter(Boolean).length))} trained`;
  }

  function outcome({ ending, num_episodes, num_valid, mean_reward }) {
    if (!num_episodes) return ending ? "not counted: the branch was cut" : "no episode ended here or below";
    const value = mean_reward === null ? "invalid" : f.number(mean_reward);
    if (ending) return `${value}, of the episode that ended here`;
    const invalid = num_valid < num_episodes ? `, ${f.count(num_episodes - num_valid)} more invalid` : "";
    return `${value}, mean of ${f.plural(num_valid, "episode")} below${invalid}`;
  }

  function advantage(item) {
    const mean = EG.treeModel.advantageOf(item.node);
    if (mean === null) return null;
    const values = Object.values(item.node.advantages);
    if (values.length === 1) return f.number(mean);
    return `${f.number(mean)}, mean of ${f.plural(values.length, "episode")}: ${f.number(Math.min(...values))} to ${f.number(Math.max(...values))}`;
  }

  // A named value of a judge or a scorer, with its words, or why there is none.
  function annotated({ name, level, value, verdict, error }) {
    const said = value === null ? `failed: ${error}` : verdict ? `${f.number(value)}: ${verdict}` : f.number(value);
    return [EG.tokens.safe(`${name} (${level})`), EG.tokens.safe(said)];
  }

  function facts(item) {
    const { node } = item;
    const { content, stats } = node;
    const searched = stats
      ? [["visits", f.count(stats.visits)], ["value", f.number(stats.value)], ["prior", stats.prior === null ? null : f.number(stats.prior)], ["repeats", stats.repeats ? `the ${stats.repeats} of an earlier sibling` : null]]
      : [];
    const paid = content.reward === null ? null : [f.number(content.reward), " ", EG.episode.components(content.components)];
    const all = [
      ["reward", paid],
      ["outcome", outcome(node)],
      ...searched,
      ...node.annotations.map(annotated),
      ["advantage", advantage(item)],
      ["tokens", tokens(content.segments)],
      ["cost", cost(node.cost)],
      ["spent below", stats ? cost(stats.spent) : null],
      ["tool errors", content.tool_errors || null],
      ["context", content.rewrite ? `rewritten: ${content.rewrite.toLowerCase().replaceAll("_", " ")}` : null],
    ];
    return h("dl", { class: "node-facts" }, all.filter(([, value]) => value !== null).map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
  }

  // Which episode gave the node which advantage; the names lead to where it ended.
  function byEpisode(model, item, goTo) {
    const entries = Object.entries(item.node.advantages);
    if (entries.length < 2) return null;
    const rows = entries.map(([leaf, value]) =>
      h(
        "tr",
        {},
        h("td", {}, h("button", { type: "button", on: { click: () => goTo(Number(leaf)) } }, `node ${leaf}`)),
        h("td", {}, f.ending(model.items[leaf].node.ending)),
        h("td", {}, f.number(model.items[leaf].node.mean_reward)),
        h("td", {}, f.number(value)),
      ),
    );
    const heads = ["Ended at", "Ending", "Reward", "Advantage here"].map((text) => h("th", { scope: "col" }, text));
    return h("details", { class: "more" }, h("summary", {}, `Advantages of ${f.plural(entries.length, "episode")}`), h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
  }

  function contentOf(item, options, position) {
    const body = EG.episode.turnBody(item.node.content, options, position);
    return body.length ? body : h("p", { class: "muted" }, "This edge holds no tokens.");
  }

  function tokensBefore(model, index) {
    const above = EG.treeModel.path(model, index).slice(0, -1);
    return above.reduce((sum, at) => sum + model.items[at].node.content.segments.reduce((part, { token_ids }) => part + token_ids.length, 0), 0);
  }

  function body(model, index, options) {
    if (options.scope === "node") return contentOf(model.items[index], options, { next: tokensBefore(model, index) });
    const position = { next: 0 };
    return EG.treeModel.path(model, index).map((at) => h("article", { class: "turn" }, h("h4", {}, model.items[at].title), contentOf(model.items[at], options, position)));
  }

  // options: as of EG.episode.render, and {scope: "node" | "path"}
  function render(model, index, options, goTo) {
    const item = model.items[index];
    const { node } = item;
    return [
      h(
        "div",
        { class: "node-head" },
        h("h3", {}, item.title),
        node.ending ? EG.episode.badge(node.ending) : item.kind === "unfinished" ? h("span", { class: "muted" }, "unfinished") : null,
        h("span", { class: "where" }, `node ${index} of ${model.items.length}`),
      ),
      item.kind === "pruned" ? h("p", { class: "why" }, h("b", {}, "Pruned: "), EG.tokens.safe(node.stats.pruned)) : null,
      node.error ? h("p", { class: "error" }, EG.tokens.safe(node.error)) : null,
      facts(item),
      byEpisode(model, item, goTo),
      body(model, index, options),
    ];
  }

  return { render, cost };
})();
