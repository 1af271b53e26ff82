// Which metric is drawn where. The first panel whose pattern fits takes the key; what fits none is drawn at the end.
EG.panels = (() => {
  const PANELS = [
    { title: "Reward per episode", keys: /^reward\/mean$/, note: "mean over the step's valid episodes" },
    { title: "Entropy", keys: /entropy/, note: "nats per trained token" },
    { title: "KL", keys: /^loss\/kl/, note: "to the step's start and to the reference; nats per token" },
    { title: "Clipped tokens", keys: /\/clip_/, kind: "share", note: "share of the trained tokens" },
    { title: "Policy ratio", keys: /^ratio\//, note: "new over sampling probability of a token" },
    { title: "Sampler and trainer apart", keys: /^logprob_gap\/(mean_abs|max_abs|kl)$/, note: "log-prob difference of a token, nats" },
    { title: "Correction for that gap", keys: /^logprob_gap\//, kind: "share", note: "share of the trained tokens" },
    { title: "Groups kept", keys: /^filter\//, kind: "share", note: "share of the step's groups, and why others were dropped" },
    { title: "Rows", keys: /^(rows|dropped)\//, note: "collected, trained on, and dropped for each reason" },
    { title: "Contexts rendered anew", keys: /^context_rewrites\/(?!.*episodes)/, note: "turns, by reason" },
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

  function render() {
    const { known, other } = sorted();
    const charts = PANELS.map(({ title, note, kind = "number" }, i) => (known[i].length ? chart(title, note, kind, known[i]) : null));
    return { charts: charts.filter(Boolean), other: other.map((key) => chart(key, "", kindOf(key), [key])) };
  }

  return { render };
})();
