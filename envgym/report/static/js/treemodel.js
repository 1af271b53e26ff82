// A tree of turns as its viewers need it: children, branches, what a row says, what a filter finds.
EG.treeModel = (() => {
  const f = EG.format;
  const LONGEST_LABEL = 240;

  // A label leaves out the marks of chat templates, such as <|im_end|>; the pane shows every token.
  const TEMPLATE_MARK = /<\|\w+\|>/g;
  const oneLine = (text) => EG.tokens.safe(text.slice(0, LONGEST_LABEL).replace(TEMPLATE_MARK, " ").replace(/\s+/g, " ").trim());
  const repliesIn = (segments) => segments.filter(({ origin }) => origin === "TOOL").map(({ token_strings }) => token_strings.join("")).join(" ");

  // What became of a node, in one word; the style sheet has a shape for each.
  function kindOf(node, index, children) {
    if (node.stats && node.stats.pruned !== null) return "pruned";
    if (node.ending) return "ended";
    if (index === 0) return "root";
    if (!children.length) return "unfinished";
    return node.ends_turn ? "turn" : "fork";
  }

  function statusOf({ kind, node }) {
    const ending = node.ending ? f.ending(node.ending) : "";
    if (kind === "pruned") return ending ? `pruned, ${ending}` : "pruned";
    return kind === "ended" ? ending : kind === "unfinished" ? "unfinished" : "";
  }

  function titleOf({ kind, node }) {
    if (node.turn < 0) return "Prompt";
    return node.ends_turn ? `Turn ${node.turn}` : kind === "fork" ? `Turn ${node.turn}, up to a fork` : `Turn ${node.turn}, not ended`;
  }

  // The mean over the episodes through a node, or null where none was trained on; what rounding left of 0 is 0.
  function advantageOf(node) {
    const values = Object.values(node.advantages);
    return values.length ? Number((values.reduce((sum, value) => sum + value, 0) / values.length).toFixed(9)) : null;
  }

  const searched = (node, key) => (node.stats ? node.stats[key] : null);
  const COLUMNS = [
    { key: "reward", name: "reward", title: "reward of the turn", of: (node) => node.content.reward },
    { key: "outcome", name: "outcome", title: "mean reward of the valid episodes through the node", of: (node) => node.mean_reward },
    { key: "visits", name: "visits", title: "how often the search visited the node", of: (node) => searched(node, "visits") },
    { key: "value", name: "value", title: "the value that the search estimated", of: (node) => searched(node, "value") },
    { key: "advantage", name: "adv.", title: "advantage: mean over the episodes through the node that were trained on", of: advantageOf },
  ];

  // The columns that have a value, each with one number of decimals, so that its numbers line up.
  function columnsOf(nodes) {
    return COLUMNS.flatMap((column) => {
      const values = nodes.map(column.of).filter((value) => value !== null);
      if (!values.length) return [];
      const largest = Math.max(...values.map(Math.abs));
      const isWhole = values.every(Number.isInteger);
      const shown = (value) => (value === 0 ? "0" : isWhole || largest < 0.1 || largest >= 1000 ? f.number(value) : f.fixed(value, 2));
      return [{ ...column, shown }];
    });
  }

  function build(tree) {
    const items = tree.nodes.map((node, index) => ({ node, index, children: [] }));
    for (const item of items) if (item.node.parent !== null) items[item.node.parent].children.push(item.index);
    for (const item of items) {
      const { node, index, children } = item;
      const parent = node.parent === null ? null : items[node.parent];
      item.kind = kindOf(node, index, children);
      item.level = parent ? parent.level + 1 : 1;
      item.last = index;
      // An only child stands right under its parent: what is indented is what branches.
      item.indent = parent ? parent.indent + (parent.children.length > 1 ? 1 : 0) : 0;
      item.title = titleOf(item);
      item.status = statusOf(item);
      const { segments, summary, observation } = node.content;
      item.says = oneLine(summary);
      item.reply = oneLine(observation || repliesIn(segments));
    }
    for (const { node, last } of items.slice().reverse()) if (node.parent !== null) items[node.parent].last = Math.max(items[node.parent].last, last);
    return { tree, items, columns: columnsOf(tree.nodes), texts: null };
  }

  const models = new Map();
  function of(tree) {
    if (!models.has(tree)) models.set(tree, build(tree));
    return models.get(tree);
  }

  function path(model, index) {
    const found = [];
    for (let at = index; at !== null; at = model.items[at].node.parent) found.unshift(at);
    return found;
  }

  // All that a filter looks at, made when the first filter is typed.
  function texts(model) {
    model.texts ??= model.items.map(({ node, status, title }) => {
      const { segments, action, observation } = node.content;
      const words = segments.map(({ token_strings }) => token_strings.join("")).join("");
      return [title, status, searched(node, "pruned"), node.error, words, action, observation].filter(Boolean).join("\n").toLowerCase();
    });
    return model.texts;
  }

  const CHOICES = {
    all: () => true,
    "ended": ({ node }) => node.ending !== null,
    "reward above 0": ({ node }) => node.ending !== null && node.mean_reward > 0,
    "pruned": ({ kind }) => kind === "pruned",
    "not ended": ({ kind }) => kind === "unfinished",
    "trained on": ({ node }) => node.content.segments.some(({ trained }) => trained.some(Boolean)),
  };

  // The nodes that hold every word of `text`, or null where nothing is asked for.
  function find(model, text, choice) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length && choice === "all") return null;
    const all = texts(model);
    return new Set(model.items.filter((item) => CHOICES[choice](item) && words.every((word) => all[item.index].includes(word))).map(({ index }) => index));
  }

  return { of, path, find, advantageOf, choices: Object.keys(CHOICES) };
})();
