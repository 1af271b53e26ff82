// One episode: its facts and its turns, as tokens or as plain text.
EG.episode = (() => {
  const { h } = EG.dom;
  const f = EG.format;

  function rewardText(reward) {
    return reward === null ? "invalid" : f.number(reward);
  }

  const lastOf = (path) => Number(path.slice(path.lastIndexOf("/") + 1)) || 0;
  const treeOf = ({ source, step, tree_id }) => `${source}/${step}/${tree_id}`;
  const numInTree = new Map();
  for (const tree of EG.data.report.episodes.map(treeOf)) numInTree.set(tree, (numInTree.get(tree) ?? 0) + 1);

  // The task, which of its samples and, where the tree of the sample has several episodes, the node where this one ended.
  function name(episode) {
    const sample = `${episode.task_id} #${lastOf(episode.tree_id)}`;
    return numInTree.get(treeOf(episode)) > 1 ? `${sample}, node ${lastOf(episode.id)}` : sample;
  }

  function badge(ending) {
    return h("span", { class: "badge" }, h("i", { style: { background: EG.palette.ending(ending) } }), f.ending(ending));
  }

  function components(values) {
    const entries = Object.entries(values);
    if (!entries.length) return null;
    return h("span", { class: "components" }, entries.map(([name, value]) => h("span", {}, `${name} `, h("b", {}, f.number(value)))));
  }

  // The app shows the beginning of a long segment, and says how many tokens it has.
  const sizeOf = (segment) => segment.num_tokens ?? segment.token_ids.length;

  function counts(episode) {
    let tokens = 0;
    let sampled = 0;
    let trained = 0;
    for (const segment of EG.data.tokensOf(episode)) {
      const size = sizeOf(segment);
      tokens += size;
      if (segment.origin === "POLICY") sampled += size;
      trained += segment.trained.filter(Boolean).length;
    }
    if (!tokens) return f.plural(episode.turns.length, "turn");
    return `${f.plural(episode.turns.length, "turn")}, ${f.plural(tokens, "token")}: ${f.count(sampled)} sampled, ${f.count(trained)} trained`;
  }

  function head(episode) {
    return h(
      "div",
      { class: "episode-head" },
      h("h3", {}, EG.tokens.safe(name(episode))),
      h("span", {}, episode.env_id),
      h("span", {}, `${episode.source}, step ${f.count(episode.step)}`),
      h("span", { class: "muted" }, "tree ", EG.tokens.safe(episode.tree_id)),
      badge(episode.ending),
      h("span", { class: "reward" }, "reward ", h("b", {}, rewardText(episode.reward))),
      components(episode.components),
      h("span", { class: "muted" }, counts(episode)),
      episode.error ? h("p", { class: "error" }, EG.tokens.safe(episode.error)) : null,
    );
  }

  function block(name, origin, text) {
    return h("div", { class: `segment ${origin}` }, h("div", { class: "gutter" }, h("b", {}, name)), h("div", { class: "text" }, EG.tokens.safe(text)));
  }

  function asText(segments) {
    return segments.map((segment) => block(segment.origin.toLowerCase(), segment.origin.toLowerCase(), segment.token_strings.join("")));
  }

  function turnBody(turn, options, position) {
    if (turn.segments.length && options.view !== "messages") return segmentRows(turn.segments, options, position);
    // What has no messages, such as a turn that was cut, has its tokens as text.
    if (!turn.action && !turn.observation) return asText(turn.segments);
    return [turn.action ? block("action", "policy", turn.action) : null, turn.observation ? block("reply", "tool", turn.observation) : null];
  }

  function segmentRows(segments, options, position) {
    return segments.map((segment) => {
      const row = EG.tokens.segmentRow(segment, position.next, options.coloring);
      position.next += sizeOf(segment);
      return row;
    });
  }

  function turnCard(turn, index, options, position) {
    const notes = [
      turn.reward === null ? null : h("span", {}, "reward ", h("b", {}, f.number(turn.reward))),
      components(turn.components),
      turn.tool_errors ? h("span", { class: "warn" }, f.plural(turn.tool_errors, "tool error")) : null,
      turn.rewrite ? h("span", { class: "warn" }, `context rewritten: ${turn.rewrite.toLowerCase().replaceAll("_", " ")}`) : null,
    ];
    return h("article", { class: "turn" }, h("h4", {}, `Turn ${index}`, h("span", { class: "turn-notes" }, notes)), turnBody(turn, options, position));
  }

  // options: {coloring: a key of EG.tokens.colorings, view: "tokens" | "messages"}
  function render(episode, options) {
    const position = { next: 0 };
    const tokens = options.view === "messages" ? asText(episode.prompt) : segmentRows(episode.prompt, options, position);
    const prompt = tokens.concat(episode.messages.map(({ role, text }) => block(role, "prompt", text)));
    return [
      head(episode),
      prompt.length ? h("article", { class: "turn" }, h("h4", {}, "Prompt"), prompt) : null,
      episode.turns.map((turn, index) => turnCard(turn, index, options, position)),
    ];
  }

  return { render, turnBody, components, badge, rewardText, name };
})();
