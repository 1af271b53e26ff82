// Lines with bands, and dots with interval bars, over train steps.
EG.lines = (() => {
  const { s } = EG.dom;
  const MAX_POINTS = 800;

  const isNumber = (value) => value !== null && value !== undefined;

  // Exponential mean, corrected for its start; gaps stay gaps.
  function smooth(points, weight) {
    if (!weight) return points;
    let sum = 0;
    let mass = 0;
    return points.map((point) => {
      if (!isNumber(point.y)) return { x: point.x, y: null };
      sum = weight * sum + (1 - weight) * point.y;
      mass = weight * mass + (1 - weight);
      return { x: point.x, y: sum / mass };
    });
  }

  // Keep the extremes of each bucket of a very long series: what is drawn looks the same.
  function thin(points) {
    if (points.length <= MAX_POINTS) return points;
    const size = Math.ceil(points.length / (MAX_POINTS / 2));
    const kept = [];
    for (let start = 0; start < points.length; start += size) {
      const bucket = points.slice(start, start + size);
      const valid = bucket.filter((point) => isNumber(point.y));
      if (!valid.length) {
        kept.push(bucket[0]);
        continue;
      }
      const least = valid.reduce((a, b) => (b.y < a.y ? b : a));
      const most = valid.reduce((a, b) => (b.y > a.y ? b : a));
      kept.push(...(least === most ? [least] : [least, most].sort((a, b) => a.x - b.x)));
    }
    return kept;
  }

  // Runs of points without a gap.
  function runs(points, has) {
    const found = [[]];
    for (const point of points) {
      if (has(point)) found[found.length - 1].push(point);
      else if (found[found.length - 1].length) found.push([]);
    }
    return found.filter((run) => run.length);
  }

  const path = (run, x, y, key) => run.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p[key]).toFixed(1)}`).join("");

  function drawBand(group, points, x, y, color) {
    for (const run of runs(points, (p) => isNumber(p.low) && isNumber(p.high))) {
      const back = run.slice().reverse();
      const d = `${path(run, x, y, "high")}${path(back, x, y, "low").replace("M", "L")}Z`;
      group.append(s("path", { d, class: "band", fill: color }));
    }
  }

  function drawLine(group, points, x, y, color, extra = {}) {
    for (const run of runs(thin(points), (p) => isNumber(p.y))) {
      if (run.length === 1) group.append(s("circle", { cx: x(run[0].x), cy: y(run[0].y), r: 2.5, fill: color, ...extra }));
      else group.append(s("path", { d: path(run, x, y, "y"), class: "line", stroke: color, ...extra }));
    }
  }

  function drawDots(group, series, x, y) {
    const { points, color, mark, shift = 0 } = series;
    // Two points are a comparison, not a curve.
    if (points.length > 2) drawLine(group, points, (value) => x(value) + shift, y, color, { class: "line thin" });
    for (const point of points) {
      if (!isNumber(point.y)) continue;
      const at = x(point.x) + shift;
      if (isNumber(point.low)) {
        const [low, high] = [y(point.low), y(point.high)];
        group.append(s("path", { class: "whisker", stroke: color, d: `M${at} ${low}V${high}M${at - 4} ${low}h8M${at - 4} ${high}h8` }));
      }
      group.append(EG.frame.marker(mark, at, y(point.y), color));
    }
  }

  function drawSeries(group, series, x, y) {
    if (series.mark && series.mark !== "line") return drawDots(group, series, x, y);
    const weight = EG.store.get("smoothing");
    if (!weight) drawBand(group, series.points, x, y, series.color);
    if (weight) drawLine(group, series.points, x, y, series.color, { class: "line faint" });
    drawLine(group, smooth(series.points, weight), x, y, series.color, series.dash ? { "stroke-dasharray": series.dash } : {});
    return undefined;
  }

  function yDomain(seriesList, kind, fixed) {
    return ([from, to]) => {
      if (fixed) return fixed;
      const seen = seriesList.flatMap((series) =>
        series.points.filter((p) => p.x >= from && p.x <= to).flatMap((p) => [p.y, p.low, p.high]),
      );
      const found = EG.scale.extent(seen);
      if (!found) return [0, 1];
      let [low, high] = found;
      if (low >= 0 && (kind === "share" || low < 0.6 * high)) low = 0;
      if (high <= 0 && high > 0.6 * low) high = 0;
      const [niceLow, niceHigh] = EG.scale.nice([low, high]);
      return kind === "share" && low >= 0 && high <= 1 ? [Math.max(0, niceLow), Math.min(1, niceHigh)] : [niceLow, niceHigh];
    };
  }

  function readout(series, kind) {
    const byStep = new Map(series.points.map((point) => [point.x, point]));
    return (step) => {
      const point = byStep.get(step);
      if (!point) return "";
      const value = EG.format.as(kind, point.y);
      if (!isNumber(point.low) || !isNumber(point.y)) return value;
      const scale = kind === "share" ? 100 : 1;
      const ends = [point.low, point.high].map((end) => (kind === "share" ? EG.format.fixed(end * scale, 1) : EG.format.number(end)));
      return `${value} [${ends.join(", ")}]`;
    };
  }

  // series: [{name, color, points: [{x, y, low?, high?}], mark?, dash?}]
  function lineChart({ title, note, kind = "number", series, fixed, height, ...own }) {
    const xs = [...new Set(series.flatMap((item) => item.points.map((point) => point.x)))].sort((a, b) => a - b);
    const span = xs[xs.length - 1] - xs[0];
    return EG.frame.frame({
      ...own,
      title,
      note,
      kind,
      height,
      xs,
      pad: span === 0 ? 1 : span * 0.012,
      legend: series.map((item) => ({ name: item.name, color: item.color, mark: item.mark, value: readout(item, kind) })),
      yDomain: yDomain(series, kind, fixed),
      draw: (group, x, y) => series.forEach((item) => drawSeries(group, item, x, y)),
    });
  }

  return { lineChart };
})();
