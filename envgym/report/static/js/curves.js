// The sections drawn over train steps: learning, rewards, endings, time, invalid samples.
EG.curves = (() => {
  const { h, section } = EG.dom;
  const { palette, data } = EG;

  const valuesOf = (key) => new Map(data.points(key).map((point) => [point.x, point.y]));

  function learningChart() {
    const labels = data.labels.filter((label) => data.evaluationPoints(label).length);
    const steps = new Map(labels.map((label) => [label, new Set(data.evaluationPoints(label).map((point) => point.x))]));
    // Evaluations at the same step stand side by side.
    const crowded = labels.filter((a) => labels.some((b) => a !== b && [...steps.get(a)].some((step) => steps.get(b).has(step))));
    const series = [];
    if (data.keys.includes("train/success")) {
      series.push({ name: "training tasks", color: "var(--c7)", points: data.pointsWithInterval("train/success") });
    }
    labels.forEach((label, i) =>
      series.push({
        name: EG.format.evaluation(label),
        color: palette.series(i),
        mark: palette.mark(i),
        shift: crowded.includes(label) ? (crowded.indexOf(label) - (crowded.length - 1) / 2) * 8 : 0,
        points: data.evaluationPoints(label),
      }),
    );
    // One evaluation alone is no curve: its section has the number.
    if (!series.some(({ points }) => points.length > 1)) return null;
    const note = "Bars: 95 % intervals by task, as in the table of evaluations. Band: 95 % intervals by group of the step.";
    const chart = EG.lines.lineChart({ title: "Success", note, kind: "share", series, fixed: [0, 1], height: 300 });
    chart.classList.add("wide");
    return chart;
  }

  // Over its own updates, so it neither zooms nor points with the other charts.
  function warmStart() {
    const phases = data.report.warm_start.filter((losses) => losses.length);
    if (!phases.length) return null;
    let before = 0;
    const series = phases.map((losses, i) => {
      const points = losses.map((loss, number) => ({ x: before + number + 1, y: loss }));
      before += losses.length;
      return { name: phases.length > 1 ? `phase ${i + 1}` : "loss", color: palette.series(i), points };
    });
    const note = "negative log-likelihood of the demonstrations' tokens, nats per token";
    return EG.lines.lineChart({ title: "Warm start", note, series, xName: "update", store: EG.makeStore() });
  }

  function controls() {
    const shown = h("output", {}, "none");
    const slider = h("input", {
      type: "range",
      min: 0,
      max: 0.95,
      step: 0.05,
      value: "0",
      on: {
        input: (event) => {
          const weight = Number(event.target.value);
          shown.textContent = weight ? weight.toFixed(2) : "none";
          EG.store.set("smoothing", weight);
        },
      },
    });
    const reset = h("button", { type: "button", disabled: true, on: { click: () => EG.store.set("range", null) } }, "Show all steps");
    EG.store.on("range", (range) => {
      reset.disabled = range === null;
      reset.textContent = range ? `Show all steps (now ${range[0]} to ${range[1]})` : "Show all steps";
    });
    return h(
      "div",
      { class: "controls" },
      h("label", { class: "field" }, h("span", {}, "Smoothing"), slider, shown),
      reset,
      h("span", { class: "hint" }, "Point at a step to read every chart there. Drag across a chart to zoom all of them; double-click to see all."),
    );
  }

  function learning() {
    const { charts, flat, other, otherFlat } = EG.panels.render();
    const main = learningChart();
    const drawn = [warmStart(), ...charts].filter(Boolean);
    if (!main && !drawn.length && !flat && !other.length && !otherFlat) return null;
    const rest =
      other.length || otherFlat
        ? h("details", { class: "more" }, h("summary", {}, "Further metrics"), otherFlat, h("div", { class: "grid" }, other))
        : null;
    return section("curves", "Learning curves", null, main || drawn.length ? controls() : null, main, h("div", { class: "grid" }, drawn), flat, rest);
  }

  function rewards() {
    const keys = data.keys.filter((key) => /^reward\//.test(key) && !data.isIntervalEnd(key) && key !== "reward/mean");
    if (!keys.length) return null;
    if (keys.every(EG.panels.isFlat)) return EG.panels.flatItems("Reward components", "number", keys);
    const series = keys.map((key, i) => ({
      name: EG.format.keyName(key),
      color: palette.series(i),
      dash: palette.dash(i),
      points: data.pointsWithInterval(key),
    }));
    const together = EG.lines.lineChart({ title: "Reward components", note: "mean over the step's valid episodes, before weighting", series, height: 220 });
    return together;
  }

  function endings() {
    const keys = data.keys.filter((key) => /^ending\//.test(key));
    if (!keys.length) return null;
    const rank = (key) => palette.endingOrder.indexOf(key.slice("ending/".length));
    const parts = keys
      .sort((a, b) => rank(a) - rank(b))
      .map((key) => {
        const name = key.slice("ending/".length);
        return { name: EG.format.ending(name), color: palette.ending(name), values: valuesOf(key) };
      });
    return EG.stacks.stackChart({ title: "Endings of training episodes", note: "share of the step's episodes", parts, shares: true, height: 220 });
  }

  function time() {
    const keys = data.keys.filter((key) => /^time\/.*_s$/.test(key) && !/\/(step|total)_s$/.test(key));
    if (!keys.length) return null;
    const parts = keys.map((key, i) => ({ name: EG.format.keyName(key), color: palette.series(i), values: valuesOf(key) }));
    return EG.stacks.stackChart({ title: "Seconds per phase", note: "of each train step", kind: "seconds", parts, height: 220 });
  }

  function invalid() {
    const keys = data.keys.filter((key) => /invalid/.test(key) && !/^eval\//.test(key) && !data.isIntervalEnd(key));
    if (!keys.length) return null;
    const series = keys.map((key, i) => ({ name: EG.format.keyName(key), color: palette.series(i + 1), points: data.points(key) }));
    const share = keys.every((key) => /(rate|share|fraction)$/.test(key));
    if (keys.every(EG.panels.isFlat)) return EG.panels.flatItems("Invalid episodes", share ? "share" : "number", keys);
    return EG.lines.lineChart({
      title: "Invalid episodes",
      note: "infrastructure failed; not trained, not counted as 0",
      kind: share ? "share" : "number",
      series,
      height: 220,
    });
  }

  function episodesOverTime() {
    const parts = [rewards(), endings(), time(), invalid()].filter(Boolean);
    if (!parts.length) return null;
    const charts = parts.filter((part) => !Array.isArray(part));
    return section("training", "Rewards, endings, time", null, h("div", { class: "grid two" }, charts), EG.panels.flatLine(parts.filter(Array.isArray).flat()));
  }

  return { learning, episodesOverTime };
})();
