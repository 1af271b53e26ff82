// Which metric is drawn where. The first panel whose pattern fits takes the key; what fits none is drawn at the end.
EG.panels = (() => {
  const { h } = EG.dom;
  const PANELS = [
    { title: "Reward per episode", keys: /^reward\/mean$/, note: "mean over the step's valid episodes" },
    { title: "Entropy", keys: /entropy/, note: "nats per trained token" },
    { title: "KL", keys: /^loss\/kl/, note: "to the step's start and to the reference; nats per token" },
    { title: "Clipped tokens", keys: /\/clip_/, kind: "share", note: "share of the trained tokens" },
    { title: "Policy ratio", keys: /^ratio\//, note: "new over sampling probability of a token" },
    { title: "Sampler-trainer log-prob mismatch", keys: /^logprob_gap\/(mean_abs|max_abs|kl)$/, note: "per token, nats" },
    { title: "Off-policy correction", keys: /^logprob_gap\//, kind: "share", note: "share of the trained tokens" },
    { title: "Groups kept", keys: /^filter\//, kind: "share", note: "share of the step's groups, and why others were dropped" },
    { title: "Rows", keys: /^(rows|dropped)\//, note: "collected, trained on, and dropped for each reason" },
    { title: "Context rewrites", keys: /^context_rewrites\/(?!.*episodes)/, note: "turns, by reason" },
    { title: "Loss", keys: /^loss\// },
    { title: "Gradient norm", keys: /grad_norm/, note: "before clipping" },
    { title: "Learning rate", keys: /(^|\/)lr$/ },
    { title: "Tokens per second", keys: /tokens_per_s/, note: "sampled" },
    { title: "Tokens per episode", keys: /^rollout\/.*tokens/, note: "sampled, and of a row that training reads" },
    { title: "Turns per episode", keys: /^rollout\/turns/ },
    { title: "Tool calls per episode", keys: /^rollout\/tool_/, note: "calls: well-formed; errors: malformed or refused" },
  ];

  // Shown by a section of their own, or a part of another metric.
  const ELSEWHERE = [/^reward\//, /^ending\//, /^time\//, /invalid/, /^train\/success/, /^eval\//];

  const kindOf = (key) => (/(share|fraction|rate|success|accuracy)$/.test(key) ? "share" : "number");

  // A metric that never changed, or was measured once, is a number and no curve.
  function isFlat(key) {
    const values = EG.data.points(key).map(({ y }) => y);
    return values.every((value) => value === values[0]);
  }

  function flatItems(title, kind, keys) {
    return keys.map((key) => {
      const name = EG.format.keyName(key);
      const shown = title.toLowerCase() === name || title === key ? "" : `${name} `;
      return h("span", {}, `${title}: ${shown}`, h("b", {}, EG.format.as(kind, EG.data.points(key)[0].y)));
    });
  }

  // One line for all of them.
  function flatLine(items) {
    return items.length ? h("p", { class: "flat" }, h("b", {}, "The same in every step. "), items) : null;
  }

  function chart(title, note, kind, keys) {
    const series = keys.map((key, i) => ({
      name: EG.format.keyName(key),
      color: EG.palette.series(i),
      dash: EG.palette.dash(i),
      points: EG.data.pointsWithInterval(key),
    }));
    return EG.lines.lineChart({ title, note, kind, series });
  }

  function sorted() {
    const known = PANELS.map(() => []);
    const other = [];
    for (const key of EG.data.keys) {
      if (EG.data.isIntervalEnd(key)) continue;
      const at = PANELS.findIndex((panel) => panel.keys.test(key));
      if (ELSEWHERE.some((pattern) => pattern.test(key)) && !(at === 0)) continue;
      if (at >= 0) known[at].push(key);
      else other.push(key);
    }
    return { known, other };
  }

  // Returns charts of the known metrics and of all others, each with the line of those that do not change.
  function render() {
    const { known, other } = sorted();
    const groups = PANELS.map(({ title, note, kind = "number" }, i) => ({ title, note, kind, keys: known[i] })).filter(({ keys }) => keys.length);
    const others = other.map((key) => ({ title: key, note: "", kind: kindOf(key), keys: [key] }));
    const drawn = (list) => list.filter(({ keys }) => !keys.every(isFlat)).map(({ title, note, kind, keys }) => chart(title, note, kind, keys));
    const flat = (list) => flatLine(list.filter(({ keys }) => keys.every(isFlat)).flatMap(({ title, kind, keys }) => flatItems(title, kind, keys)));
    return { charts: drawn(groups), flat: flat(groups), other: drawn(others), otherFlat: flat(others) };
  }

  return { render, isFlat, flatItems, flatLine };
})();
