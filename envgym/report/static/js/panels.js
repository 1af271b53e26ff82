// Which metric is drawn where. The first panel whose pattern fits takes the key; what fits none is drawn at the end.
EG.panels = (() => {
  const PANELS = [
    { title: "Reward per episode", keys: /^(train|reward)\/(reward|total|return)(_mean)?$/, note: "mean over the step's valid episodes" },
    { title: "Entropy", keys: /entropy/, note: "nats per sampled token" },
    { title: "KL to the reference policy", keys: /(^|[/_])kl/, note: "nats per sampled token" },
    { title: "Clipped tokens", keys: /clip_?(fraction|share|frac)/, kind: "share", note: "share of the trained tokens" },
    { title: "Policy ratio, extremes", keys: /ratio/, note: "new over sampling probability of a token" },
    { title: "Sampler and trainer apart", keys: /(gap|mismatch)/, note: "size of the log-prob difference, nats" },
    { title: "Gradient norm", keys: /grad_?norm/, note: "before clipping" },
    { title: "Loss", keys: /^loss\/(loss|total|policy|policy_loss)$/ },
    { title: "Learning rate", keys: /(^|\/)(lr|learning_rate)$/ },
    { title: "Tokens per second", keys: /tokens_per_s/, kind: "count" },
    { title: "Tokens per episode", keys: /(length|tokens)/, kind: "number" },
    { title: "Turns per episode", keys: /turns/, kind: "number" },
    { title: "Tool errors per episode", keys: /tool_errors?/ },
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
