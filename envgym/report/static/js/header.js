// The head of the report: what was run, what was promised, what came out.
EG.header = (() => {
  const { h } = EG.dom;
  const f = EG.format;

  function tile(title, body, foot, size = "") {
    return h("div", { class: `tile ${size}` }, h("h2", {}, title), h("div", { class: "big" }, body), h("p", {}, foot));
  }

  function sided(word, estimate) {
    return h("span", { class: "sided" }, h("small", {}, word), h("b", {}, f.percent(estimate.value)), h("small", {}, f.interval(estimate)));
  }

  function changeTile({ before, after, before_step, after_step, label }) {
    const arrow = h("span", { class: "arrow", "aria-label": "to" }, "\u2192");
    const numbers = [sided(`before, step ${f.count(before_step)}`, before), arrow, sided(`after, step ${f.count(after_step)}`, after)];
    const rows = [
      { name: "before", estimate: before, color: EG.palette.before, mark: "diamond" },
      { name: "after", estimate: after, color: EG.palette.after, mark: "circle" },
    ];
    const plot = EG.intervals.intervalPlot({ label: "Success before and after", rows, domain: [0, 1], values: false });
    return tile(`Success, ${f.evaluation(label)}`, [h("div", { class: "big" }, numbers), plot], "", "wide");
  }

  function differenceTile({ paired }) {
    const { value, interval } = paired.difference;
    const clear = interval.low > 0 ? "above 0" : interval.high < 0 ? "below 0" : "includes 0";
    return tile(
      "Paired difference",
      [h("b", {}, f.points(value)), h("small", {}, " points")],
      [
        h("span", { class: "line" }, `${f.points(interval.low)} to ${f.points(interval.high)}, ${f.fixed(interval.level * 100, 0)} % interval, ${clear}`),
        h("span", { class: "line" }, `${f.pValue(paired.p_value)}, ${paired.p_value_method}`),
      ],
      "beside",
    );
  }

  function tasksTile({ paired }) {
    const left = paired.num_left_out ? ` ${f.plural(paired.num_left_out, "task")} left out.` : "";
    return tile(
      "Same tasks, before and after",
      [h("b", {}, f.count(paired.difference.num_tasks))],
      `${f.count(paired.wins)} better, ${f.count(paired.losses)} worse, ${f.count(paired.ties)} unchanged; ${f.plural(paired.difference.num_samples, "episode")}.${left}`,
    );
  }

  function declaredTile(declared, comparison) {
    if (!declared) return tile("Declared in advance", [h("b", { class: "none" }, "nothing")], "The numbers of tasks and seeds and the effect size were not declared for this run.");
    const minimum = declared.minimum_detectable_effect;
    const found = comparison ? Math.abs(comparison.paired.difference.value) : null;
    const verdict = found === null ? "" : found >= minimum ? " The measured difference is larger." : " The measured difference is smaller.";
    return tile(
      "Minimum detectable effect (80 % power)",
      [h("b", {}, f.fixed(minimum * 100, 1)), h("small", {}, " points")],
      `${f.plural(declared.num_tasks, "held-out task")} \u00d7 ${f.plural(declared.samples_per_task, "sample")}, ${f.plural(declared.num_seeds, "seed")}; \u03b1 = ${declared.alpha}, power ${f.percent(declared.power, 0)}.${verdict}`,
    );
  }

  function evaluationTile({ label, step, success }) {
    const estimate = success.valid;
    const where = `Success, ${f.evaluation(label)}, step ${f.count(step)}`;
    if (!estimate) return tile(where, [h("b", { class: "none" }, "no valid sample")], "", "wide");
    const rows = [{ name: "", estimate, color: EG.palette.after, mark: "circle" }];
    const plot = EG.intervals.intervalPlot({ label: where, rows, domain: [0, 1], values: false });
    const number = h("div", { class: "big" }, h("b", {}, f.percent(estimate.value)));
    return tile(where, [number, plot], `${f.interval(estimate)}, ${f.plural(estimate.num_tasks, "task")}`, "wide");
  }

  function trainTile() {
    const points = EG.data.points("train/success").filter((point) => point.y !== null);
    if (!points.length) return null;
    const last = points[points.length - 1];
    return tile("Success on training tasks", [h("b", {}, f.percent(last.y))], `step ${f.count(last.x)}; there was no held-out evaluation`, "wide");
  }

  function invalidTile(evaluation) {
    if (!evaluation) return null;
    const { num_invalid, num_samples, as_failure, as_success } = evaluation.success;
    const bounds = num_invalid
      ? `Success is ${f.percent(as_failure.value)} if all of them count as failures, ${f.percent(as_success.value)} if all count as successes.`
      : "No infrastructure failure.";
    return tile(
      `Invalid samples, ${f.evaluation(evaluation.label)}, step ${f.count(evaluation.step)}`,
      [h("b", {}, f.count(num_invalid)), h("small", {}, `of ${f.count(num_samples)}`)],
      bounds,
    );
  }

  function tiles({ meta, comparisons, evaluations }) {
    const headline = comparisons[0];
    if (headline) {
      const after = evaluations.find(({ label, step }) => label === headline.label && step === headline.after_step);
      const declared = declaredTile(meta.declared, headline);
      return [changeTile(headline), differenceTile(headline), tasksTile(headline), declared, invalidTile(after)];
    }
    const last = evaluations[evaluations.length - 1];
    return [last ? evaluationTile(last) : trainTile(), declaredTile(meta.declared, null), invalidTile(last)];
  }

  // A run whose every update was empty says so before anything else: its curves only look like training.
  function nothingTrained() {
    const updates = EG.data.points("optim/updates").filter(({ x }) => x > 0);
    if (!updates.length || updates.some(({ y }) => y !== 0)) return null;
    const reasons = EG.data.keys.filter((key) => /^filter\//.test(key) && key !== "filter/kept" && EG.data.points(key).some(({ y }) => y > 0));
    return h("p", { class: "why", role: "note" }, `No train step updated the policy: every group was dropped (${reasons.map(f.keyName).join(", ")}).`);
  }

  function facts(meta, metrics) {
    const steps = metrics.length ? metrics[metrics.length - 1].step : 0;
    return [
      ["env", meta.env_ids.join(", ")],
      ["model", meta.model],
      ["recipe", meta.recipe],
      ["agent", meta.agent],
      [meta.seeds.length === 1 ? "seed" : "seeds", meta.seeds.join(", ")],
      ["train steps", steps ? f.count(steps) : ""],
      ["best checkpoint", meta.best_checkpoint],
      ["wall time", meta.duration_s === null ? "" : f.seconds(meta.duration_s)],
      ["device", meta.device],
      ["made", f.when(meta.created)],
    ].filter(([, value]) => value);
  }

  function render(report) {
    const { meta, metrics } = report;
    return h(
      "header",
      { id: "overview" },
      h("p", { class: "overline" }, "envgym report"),
      h("h1", {}, meta.name),
      h("dl", { class: "facts" }, facts(meta, metrics).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value)))),
      nothingTrained(),
      h("div", { class: "tiles" }, tiles(report)),
    );
  }

  return { render };
})();
