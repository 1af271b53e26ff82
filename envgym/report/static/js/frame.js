// The frame of a chart over train steps: title, legend that reads out values, axes, crosshair, zoom.
// A spec gives: title, note, kind, xs (sorted steps), legend [{name, color, mark, value(step)}],
// yDomain(range) -> [low, high], draw(group, x, y), height, xName, store (of charts that are not over train steps).
EG.frame = (() => {
  const { h, s, replace } = EG.dom;
  const MARGIN = { top: 10, right: 14, bottom: 38 };
  const CHAR_WIDTH = 6.4;
  const DRAG_PIXELS = 6;
  let numClips = 0;

  // A line, dots, or a block in the colour of its series, as the chart draws it.
  function swatch({ color, mark = "line" }) {
    const shape = {
      line: () => s("line", { x1: 1, x2: 17, y1: 6, y2: 6, stroke: color, "stroke-width": 2.5 }),
      block: () => s("rect", { x: 3, y: 0, width: 12, height: 12, rx: 2, fill: color }),
    }[mark];
    return s("svg", { class: "swatch", width: 18, height: 12, "aria-hidden": true }, shape ? shape() : marker(mark, 9, 6, color));
  }

  // Marks differ in shape as well as colour.
  function marker(mark, x, y, color) {
    const hollow = { fill: "var(--surface)", stroke: color, "stroke-width": 2 };
    if (mark === "diamond") return s("path", { d: `M${x} ${y - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z`, ...hollow });
    if (mark === "square") return s("rect", { x: x - 4, y: y - 4, width: 8, height: 8, fill: color });
    if (mark === "triangle") return s("path", { d: `M${x} ${y - 5}l5 9h-10z`, ...hollow });
    return s("circle", { cx: x, cy: y, r: 4.5, fill: color });
  }

  function nearest(xs, target) {
    let best = xs[0];
    for (const x of xs) if (Math.abs(x - target) < Math.abs(best - target)) best = x;
    return best;
  }

  function legend(spec) {
    const values = spec.legend.map(() => h("b", {}));
    const list = h(
      "ul",
      { class: "legend" },
      spec.legend.map((item, i) =>
        h("li", {}, spec.legend.length > 1 || item.mark ? swatch(item) : null, h("span", {}, item.name), values[i]),
      ),
    );
    const where = h("span", { class: "where" });
    const unit = spec.xName.replace("train ", "");
    function show(step) {
      const at = step === null ? spec.xs[spec.xs.length - 1] : nearest(spec.xs, step);
      where.textContent = step === null ? `last, ${unit} ${EG.format.count(at)}` : `${unit} ${EG.format.count(at)}`;
      spec.legend.forEach((item, i) => (values[i].textContent = item.value(at)));
    }
    show(null);
    return { list, where, show };
  }

  const numTicks = (height) => Math.max(2, Math.round((height - MARGIN.top - MARGIN.bottom) / 38));

  function axes(group, x, y, width, height, { kind, xName }) {
    const yTicks = EG.scale.ticks(y.domain, numTicks(height), kind === "count");
    const labels = EG.scale.tickLabels(yTicks, kind);
    const left = x.range[0];
    yTicks.forEach((tick, i) => {
      group.append(
        s("line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        s("text", { class: "tick", x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, labels[i]),
      );
    });
    const xTicks = EG.scale.ticks(x.domain, Math.max(2, Math.floor((width - left) / 85)), true);
    const base = height - MARGIN.bottom;
    group.append(s("line", { class: "axis", x1: left, x2: width - MARGIN.right, y1: base, y2: base }));
    group.append(s("text", { class: "tick", x: (left + width - MARGIN.right) / 2, y: base + 32, "text-anchor": "middle" }, xName));
    EG.scale.tickLabels(xTicks, "number").forEach((label, i) => {
      const at = x(xTicks[i]);
      const anchor = at + (label.length * CHAR_WIDTH) / 2 > width ? "end" : "middle";
      group.append(
        s("line", { class: "axis", x1: at, x2: at, y1: base, y2: base + 4 }),
        s("text", { class: "tick", x: at, y: base + 17, "text-anchor": anchor }, label),
      );
    });
  }

  function scales(spec, width, height) {
    const full = [spec.xs[0], spec.xs[spec.xs.length - 1]];
    const range = spec.store.get("range") || full;
    const domain = spec.yDomain(range);
    const probe = EG.scale.ticks(domain, numTicks(height), spec.kind === "count");
    const longest = Math.max(...EG.scale.tickLabels(probe, spec.kind).map((label) => label.length));
    const left = Math.max(34, Math.ceil(longest * CHAR_WIDTH) + 12);
    const pad = spec.pad || 0;
    return {
      x: EG.scale.linear([range[0] - pad, range[1] + pad], [left, width - MARGIN.right]),
      y: EG.scale.linear(domain, [height - MARGIN.bottom, MARGIN.top]),
    };
  }

  // Pointer and keys: point at a step, drag to zoom, double-click to see all.
  function interact(svg, spec, current) {
    let start = null;
    const chosen = s("rect", { class: "chosen", y: MARGIN.top, width: 0 });
    const at = (event) => event.clientX - svg.getBoundingClientRect().left;
    const stepAt = (pixel) => nearest(spec.xs, current().x.invert(pixel));
    svg.addEventListener("pointermove", (event) => {
      spec.store.set("step", stepAt(at(event)));
      if (start === null) return;
      const [from, to] = [start, at(event)].sort((a, b) => a - b);
      chosen.setAttribute("x", from);
      chosen.setAttribute("width", to - from);
      chosen.setAttribute("height", svg.clientHeight - MARGIN.top - MARGIN.bottom);
      if (!chosen.isConnected) svg.append(chosen);
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = at(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointerup", (event) => {
      const from = start;
      start = null;
      chosen.remove();
      chosen.setAttribute("width", 0);
      if (from === null || Math.abs(at(event) - from) < DRAG_PIXELS) return;
      const [low, high] = [stepAt(from), stepAt(at(event))].sort((a, b) => a - b);
      if (high > low) spec.store.set("range", [low, high]);
    });
    svg.addEventListener("pointerleave", () => spec.store.set("step", null));
    svg.addEventListener("dblclick", () => spec.store.set("range", null));
    svg.addEventListener("blur", () => spec.store.set("step", null));
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      const step = spec.store.get("step");
      const now = spec.xs.indexOf(step === null ? spec.xs[spec.xs.length - 1] : nearest(spec.xs, step));
      spec.store.set("step", spec.xs[Math.min(spec.xs.length - 1, Math.max(0, now + move))]);
      event.preventDefault();
    });
  }

  function frame(given) {
    const spec = { xName: "train step", store: EG.store, ...given };
    const height = spec.height || 190;
    const key = legend(spec);
    const clip = `clip-${numClips++}`;
    const label = `${spec.title}. ${spec.legend.map((item) => `${item.name} ends at ${item.value(spec.xs[spec.xs.length - 1])}`).join("; ")}.`;
    const svg = s("svg", { class: "plot", height, role: "img", tabindex: 0, "aria-label": label });
    const cross = s("line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    let scale = null;

    function showStep(step) {
      key.show(step);
      const inside = step !== null && scale && step >= scale.x.domain[0] && step <= scale.x.domain[1];
      cross.setAttribute("visibility", inside ? "visible" : "hidden");
      if (!inside) return;
      const at = scale.x(nearest(spec.xs, step));
      cross.setAttribute("x1", at);
      cross.setAttribute("x2", at);
    }

    function redraw() {
      const width = svg.clientWidth;
      if (!width) return;
      scale = scales(spec, width, height);
      const { x, y } = scale;
      const back = s("g", {});
      axes(back, x, y, width, height, spec);
      const [left, right] = x.range;
      // All steps in view: marks at the edges stay whole. Zoomed: nothing runs over the axis.
      const over = spec.store.get("range") ? 0 : 7;
      const area = s("rect", { x: left - over, y: 0, width: right - left + 2 * over, height: height - MARGIN.bottom + 6 });
      const marks = s("g", { "clip-path": `url(#${clip})` });
      spec.draw(marks, x, y);
      replace(svg, s("clipPath", { id: clip }, area), back, cross, marks);
      showStep(spec.store.get("step"));
    }

    interact(svg, spec, () => scale);
    new ResizeObserver(redraw).observe(svg);
    ["range", "smoothing"].forEach((name) => spec.store.on(name, redraw));
    spec.store.on("step", showStep);
    return h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, h("h3", {}, spec.title), key.where, spec.note ? h("p", {}, spec.note) : null),
      key.list,
      svg,
    );
  }

  return { frame, marker, swatch, MARGIN };
})();
