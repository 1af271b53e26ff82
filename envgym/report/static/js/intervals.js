// Dots with intervals on one horizontal scale, one row each.
EG.intervals = (() => {
  const { h, s, replace } = EG.dom;
  const ROW = 34;
  const TOP = 8;
  const AXIS = 20;
  const AXIS_NAME = 14;

  // rows: [{name, estimate, color, mark}]; points: differences in percentage points instead of shares; zero: draw a
  // line at no difference; values: write each row's numbers at its end; axis: its name.
  function intervalPlot({ label, rows, domain, points = false, zero = false, values = true, axis = "" }) {
    const bottom = AXIS + (axis ? AXIS_NAME : 0);
    const height = TOP + rows.length * ROW + bottom;
    const svg = s("svg", { class: "plot intervals", height, role: "img", "aria-label": label });
    const nameWidth = Math.max(...rows.map((row) => row.name.length)) * 6.9 + 14;
    const valueWidth = values ? 150 : 20;

    function redraw() {
      const width = svg.clientWidth;
      if (!width) return;
      const x = EG.scale.linear(domain, [nameWidth + 6, Math.max(nameWidth + 60, width - valueWidth)]);
      const base = height - bottom;
      const parts = [];
      const ticks = EG.scale.ticks(domain, Math.max(2, Math.floor((x.range[1] - x.range[0]) / 62)));
      EG.scale.tickLabels(ticks, "share").forEach((text, i) => {
        const at = x(ticks[i]);
        parts.push(s("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: base }));
        parts.push(s("text", { class: "tick", x: at, y: base + 15, "text-anchor": "middle" }, points ? text.replace(" %", "") : text));
      });
      parts.push(s("line", { class: "axis", x1: x.range[0], x2: x.range[1], y1: base, y2: base }));
      if (axis) parts.push(s("text", { class: "tick", x: (x.range[0] + x.range[1]) / 2, y: base + 31, "text-anchor": "middle" }, axis));
      if (zero) parts.push(s("line", { class: "zero", x1: x(0), x2: x(0), y1: TOP - 4, y2: base }));
      rows.forEach((row, i) => parts.push(drawRow(row, TOP + i * ROW + ROW / 2, x, width)));
      replace(svg, parts);
    }

    function drawRow({ name, estimate, color, mark }, y, x, width) {
      const { low, high } = estimate.interval;
      const value = points ? EG.format.points(estimate.value) : EG.format.percent(estimate.value);
      const ends = [low, high].map((end) => (points ? EG.format.points(end) : EG.format.fixed(end * 100, 1)));
      return s(
        "g",
        {},
        s("text", { class: "row-name", x: nameWidth - 8, y: y + 4, "text-anchor": "end" }, name),
        s("path", { class: "whisker strong", stroke: color, d: `M${x(low)} ${y}H${x(high)}M${x(low)} ${y - 6}v12M${x(high)} ${y - 6}v12` }),
        EG.frame.marker(mark, x(estimate.value), y, color),
        values ? s("text", { class: "row-value", x: width - valueWidth + 12, y: y - 1 }, value) : null,
        values ? s("text", { class: "tick", x: width - valueWidth + 12, y: y + 13 }, `${ends[0]} to ${ends[1]}`) : null,
      );
    }

    new ResizeObserver(redraw).observe(svg);
    return svg;
  }

  // Shares of one whole as a labelled bar; parts: [{name, value, color}]
  function shareBar(label, parts) {
    const whole = parts.reduce((sum, part) => sum + part.value, 0);
    return h(
      "div",
      { class: "share-bar" },
      h(
        "div",
        { class: "bar", role: "img", "aria-label": `${label}: ${parts.map((p) => `${p.value} ${p.name}`).join(", ")}` },
        parts
          .filter((part) => part.value > 0)
          .map((part) => h("i", { style: { "flex-grow": String(part.value / whole), background: part.color } })),
      ),
      h(
        "ul",
        { class: "legend" },
        parts.map((part) =>
          h("li", {}, EG.frame.swatch({ color: part.color, mark: "block" }), h("span", {}, part.name), h("b", {}, EG.format.count(part.value))),
        ),
      ),
    );
  }

  return { intervalPlot, shareBar };
})();
