// Held-out evaluation: before and after on the same tasks, and the table of all evaluations.
EG.evaluation = (() => {
  const { h, section } = EG.dom;
  const f = EG.format;
  const { palette } = EG;

  // The paired differences of all comparisons share one scale that holds 0.
  function differenceDomain(comparisons) {
    const ends = comparisons.flatMap(({ paired }) => [paired.difference.interval.low, paired.difference.interval.high, 0]);
    const [low, high] = EG.scale.extent(ends);
    const room = (high - low) * 0.06 || 0.05;
    return EG.scale.nice([low < 0 ? low - room : 0, high > 0 ? high + room : 0]);
  }

  function comparison(item, domain) {
    const { label, before, after, before_step, after_step, paired } = item;
    const rows = [
      { name: `before (step ${f.count(before_step)})`, estimate: before, color: palette.before, mark: "diamond" },
      { name: `after (step ${f.count(after_step)})`, estimate: after, color: palette.after, mark: "circle" },
    ];
    const change = [{ name: "after \u2212 before", estimate: paired.difference, color: "var(--text)", mark: "square" }];
    const tasks = `paired over ${f.plural(paired.difference.num_tasks, "task")}`;
    return h(
      "article",
      { class: "card compare" },
      h("h3", {}, `Before and after, ${f.evaluation(label)}`, h("span", { class: "where" }, tasks)),
      h(
        "div",
        { class: "pair" },
        EG.intervals.intervalPlot({ label: `Success before and after, ${f.evaluation(label)}`, rows, domain: [0, 1], axis: "success" }),
        EG.intervals.intervalPlot({
          label: `Paired difference, ${f.evaluation(label)}`,
          rows: change,
          domain,
          points: true,
          zero: true,
          axis: "paired difference, percentage points",
        }),
      ),
      EG.intervals.shareBar("Tasks", [
        { name: "better after", value: paired.wins, color: palette.win },
        { name: "unchanged", value: paired.ties, color: palette.tie },
        { name: "worse after", value: paired.losses, color: palette.loss },
      ]),
    );
  }

  function estimateCell(estimate) {
    if (!estimate) return h("td", { class: "num" }, "\u2013");
    const { low, high } = estimate.interval;
    const ends = `${f.fixed(low * 100, 1)} to ${f.fixed(high * 100, 1)}`;
    return h("td", { class: "num", title: estimate.interval.method }, f.percent(estimate.value), h("small", {}, ends));
  }

  function invalidCell({ num_invalid, num_samples, as_failure, as_success }) {
    if (!num_invalid) return h("td", { class: "num" }, "0");
    const bounds = `${f.fixed(as_failure.value * 100, 1)} to ${f.fixed(as_success.value * 100, 1)}`;
    const title = "Success if every invalid sample counts as a failure, and if every one counts as a success.";
    return h("td", { class: "num", title }, `${f.count(num_invalid)} of ${f.count(num_samples)}`, h("small", {}, `bounds ${bounds}`));
  }

  function endingsCell(endings) {
    const whole = Object.values(endings).reduce((sum, value) => sum + value, 0);
    const names = palette.endingOrder.filter((name) => endings[name]);
    const text = names.map((name) => `${f.ending(name)} ${f.count(endings[name])}`).join(", ");
    return h(
      "td",
      { title: text },
      h("div", { class: "bar small", role: "img", "aria-label": text }, names.map((name) => h("i", { style: { "flex-grow": String(endings[name] / whole), background: palette.ending(name) } }))),
    );
  }

  function named({ step, label, greedy, success, tasks: counts }) {
    const decoding = greedy ? "greedy" : "sampled";
    const tasks = Object.keys(counts).length || success.as_failure.num_tasks;
    return [
      h("td", { class: "num" }, f.count(step)),
      h("td", {}, `${label}, ${decoding}`, h("small", {}, `${f.count(tasks)} \u00d7 ${f.number(success.num_samples / tasks)}`)),
    ];
  }

  function table(heads, rows) {
    const head = h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text))));
    return h("div", { class: "scroll card" }, h("table", {}, head, h("tbody", {}, rows.map((cells) => h("tr", {}, cells)))));
  }

  function results(evaluations) {
    const ks = [...new Set(evaluations.flatMap((e) => e.pass_rates.map((rate) => rate.k)))].filter((k) => k > 1).sort((a, b) => a - b);
    const heads = ["Step", "Evaluation", "Success", ...ks.flatMap((k) => [`pass@${k}`, `pass^${k}`]), "Invalid", "Endings"];
    const rows = evaluations.map((e) => {
      const rates = ks.map((k) => e.pass_rates.find((rate) => rate.k === k));
      return [
        named(e),
        estimateCell(e.success.valid),
        rates.map((rate) => [estimateCell(rate && rate.at_k), estimateCell(rate && rate.hat_k)]),
        invalidCell(e.success),
        endingsCell(e.endings),
      ];
    });
    return table(heads, rows);
  }

  function costs(evaluations) {
    const names = [...new Set(evaluations.flatMap((e) => Object.keys(e.costs)))];
    if (!names.length) return null;
    const cell = (e, name) => h("td", { class: "num" }, name === "seconds" ? f.seconds(e.costs[name]) : f.number(e.costs[name]));
    const rows = evaluations.map((e) => [named(e), names.map((name) => cell(e, name))]);
    const heads = ["Step", "Evaluation", ...names.map((name) => name.replaceAll("_", " "))];
    return h("details", { class: "more" }, h("summary", {}, "Mean cost of an episode"), table(heads, rows));
  }

  function toolErrors(evaluations) {
    const failed = evaluations.filter((e) => e.tool_failures.length);
    if (!failed.length) return null;
    const text = (value) => h("td", { class: "asked" }, EG.tokens.safe(value));
    const rows = failed.flatMap((e) => e.tool_failures.map(({ tool, message, calls, episodes }) =>
      [named(e), h("td", {}, EG.tokens.safe(tool || "malformed call")), h("td", { class: "num" }, f.count(calls)), h("td", { class: "num" }, f.count(episodes)), text(message)]));
    const heads = ["Step", "Evaluation", "Tool", "Failed calls", "Episodes", "Answer to the agent"];
    return h("details", { class: "more" }, h("summary", {}, "Tool errors"), table(heads, rows));
  }

  function endingsLegend(evaluations) {
    const seen = palette.endingOrder.filter((name) => evaluations.some((e) => e.endings[name]));
    return h("ul", { class: "legend" }, seen.map((name) => h("li", {}, EG.frame.swatch({ color: palette.ending(name), mark: "block" }), h("span", {}, f.ending(name)))));
  }

  function render({ comparisons, evaluations, episodes }) {
    if (!evaluations.length && !comparisons.length) return null;
    const domain = comparisons.length ? differenceDomain(comparisons) : null;
    const note = "Intervals are 95 % and clustered by task, as samples of one task are not independent: Wilson's for success and pass rates, the adjusted Wald interval, paired by task, for differences. pass@k: at least one of k samples succeeds; pass^k: all k do. Under each evaluation: tasks \u00d7 samples.";
    return section(
      "evaluation",
      "Held-out evaluation",
      note,
      h("div", { class: "compares" }, comparisons.map((item) => comparison(item, domain))),
      evaluations.length ? [results(evaluations), endingsLegend(evaluations), costs(evaluations), toolErrors(evaluations)] : null,
      evaluations.some(({ tasks }) => Object.keys(tasks).length) ? EG.tasks.render(evaluations, episodes) : null,
    );
  }

  return { render };
})();
