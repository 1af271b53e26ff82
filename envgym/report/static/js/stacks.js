// Stacked bars over train steps: parts of one whole.
EG.stacks = (() => {
  const { s } = EG.dom;
  const MIN_BAR = 5;

  // Steps that would be thinner than a bar are shown as the mean of neighbours.
  function bins(steps, room) {
    const size = Math.max(1, Math.ceil(steps.length / Math.max(1, Math.floor(room / MIN_BAR))));
    return Array.from({ length: Math.ceil(steps.length / size) }, (_, i) => steps.slice(i * size, (i + 1) * size));
  }

  function drawBars(group, x, y, { parts, totals, xs, shares }) {
    const shown = xs.filter((step) => step >= x.domain[0] && step <= x.domain[1]);
    const groups = bins(shown, x.range[1] - x.range[0]);
    const gap = shown.length > 1 ? (x(shown[shown.length - 1]) - x(shown[0])) / (shown.length - 1) : 40;
    for (const steps of groups) {
      const full = gap * steps.length;
      const width = Math.max(1, Math.min(40, full > 4 ? full - 1.5 : full));
      const middle = (x(steps[0]) + x(steps[steps.length - 1])) / 2;
      let base = 0;
      for (const part of parts) {
        const whole = shares ? steps.reduce((sum, step) => sum + totals.get(step), 0) : steps.length;
        const size = whole ? steps.reduce((sum, step) => sum + (part.values.get(step) || 0), 0) / whole : 0;
        if (size <= 0) continue;
        const [top, bottom] = [y(base + size), y(base)];
        group.append(s("rect", { x: middle - width / 2, width, y: top, height: Math.max(0, bottom - top), fill: part.color }));
        base += size;
      }
    }
  }

  // parts: [{name, color, values: Map step -> number}]; shares: show each step's parts as shares of its total.
  function stackChart({ title, note, kind, parts, shares = false, height }) {
    const xs = [...new Set(parts.flatMap((part) => [...part.values.keys()]))].sort((a, b) => a - b);
    const totals = new Map(xs.map((step) => [step, parts.reduce((sum, part) => sum + (part.values.get(step) || 0), 0)]));
    const shown = (part, step) => {
      const value = part.values.get(step) || 0;
      return shares ? EG.format.percent(totals.get(step) ? value / totals.get(step) : 0) : EG.format.as(kind, value);
    };
    return EG.frame.frame({
      title,
      note,
      kind: shares ? "share" : kind,
      height,
      xs,
      pad: xs.length > 1 ? 0.5 * ((xs[xs.length - 1] - xs[0]) / (xs.length - 1)) : 1,
      legend: parts.map((part) => ({ name: part.name, color: part.color, mark: "block", value: (step) => shown(part, step) })),
      yDomain: ([from, to]) =>
        shares ? [0, 1] : EG.scale.nice([0, Math.max(1e-9, ...xs.filter((x) => x >= from && x <= to).map((x) => totals.get(x)))]),
      draw: (group, x, y) => drawBars(group, x, y, { parts, totals, xs, shares }),
    });
  }

  return { stackChart };
})();
