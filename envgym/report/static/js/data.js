// The embedded data, and the views of it that several sections need.
EG.data = (() => {
  const report = JSON.parse(document.getElementById("envgym-data").textContent);

  const keys = [...new Set(report.metrics.flatMap((row) => Object.keys(row.values)))];

  // Points of one metric; steps without it are left out, None stays as a gap.
  function points(key) {
    return report.metrics.filter((row) => key in row.values).map((row) => ({ x: row.step, y: row.values[key] }));
  }

  // Points with the interval that "key_low" and "key_high" give, where they exist.
  function pointsWithInterval(key) {
    const withEnds = keys.includes(`${key}_low`) && keys.includes(`${key}_high`);
    if (!withEnds) return points(key);
    return report.metrics
      .filter((row) => key in row.values)
      .map(({ step, values }) => ({ x: step, y: values[key], low: values[`${key}_low`], high: values[`${key}_high`] }));
  }

  const isIntervalEnd = (key) => /_(low|high)$/.test(key) && keys.includes(key.replace(/_(low|high)$/, ""));

  const labels = [...new Set(report.evaluations.map((evaluation) => evaluation.label))];

  // Evaluations of one label as points with intervals; those without a valid sample are left out.
  function evaluationPoints(label) {
    return report.evaluations
      .filter((evaluation) => evaluation.label === label && evaluation.success.valid)
      .map(({ step, success: { valid } }) => ({
        x: step,
        y: valid.value,
        low: valid.interval.low,
        high: valid.interval.high,
      }));
  }

  function* tokensOf(episode) {
    for (const segment of episode.prompt) yield segment;
    for (const turn of episode.turns) for (const segment of turn.segments) yield segment;
  }

  // The scale of advantage colours, one for the report: the size that 98 % of the sampled tokens stay below.
  let advantageScale = null;
  function largestAdvantage() {
    if (advantageScale === null) {
      const sizes = [];
      const add = (segment) => segment.advantages.forEach((value) => sizes.push(Math.abs(value)));
      for (const episode of report.episodes) for (const segment of tokensOf(episode)) add(segment);
      for (const tree of report.trees) for (const node of tree.nodes) node.content.segments.forEach(add);
      sizes.sort((a, b) => a - b);
      advantageScale = sizes.length ? sizes[Math.floor((sizes.length - 1) * 0.98)] || sizes[sizes.length - 1] : 0;
    }
    return advantageScale;
  }

  return { report, keys, points, pointsWithInterval, isIntervalEnd, labels, evaluationPoints, tokensOf, largestAdvantage };
})();
