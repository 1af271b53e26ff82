// Linear scales and round ticks.
EG.scale = (() => {
  function linear([d0, d1], [r0, r1]) {
    const slope = d1 === d0 ? 0 : (r1 - r0) / (d1 - d0);
    const map = (value) => (d1 === d0 ? (r0 + r1) / 2 : r0 + (value - d0) * slope);
    map.invert = (pixel) => (slope === 0 ? d0 : d0 + (pixel - r0) / slope);
    map.domain = [d0, d1];
    map.range = [r0, r1];
    return map;
  }

  // A step of 1, 2 or 5 times a power of ten that gives about `count` ticks.
  function stepFor(span, count) {
    const rough = span / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const lead = rough / power;
    return power * (lead >= 7.1 ? 10 : lead >= 3.2 ? 5 : lead >= 1.5 ? 2 : 1);
  }

  function ticks([low, high], count, whole = false) {
    if (!(high > low)) return [low];
    let step = stepFor(high - low, count);
    if (whole) step = Math.max(1, Math.round(step));
    const first = Math.ceil(low / step - 1e-9);
    const last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }

  // Widen to round ends; a flat line gets room on both sides.
  function nice([low, high], count = 4) {
    if (high === low) {
      const room = low === 0 ? 1 : Math.abs(low) * 0.5;
      return low >= 0 && low - room < 0 ? nice([0, high + room], count) : nice([low - room, high + room], count);
    }
    const step = stepFor(high - low, count);
    return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  }

  // Labels of ticks share their digits, so that they line up.
  function tickLabels(values, kind) {
    const shown = kind === "share" ? values.map((v) => v * 100) : values;
    const step = shown.length > 1 ? Math.abs(shown[1] - shown[0]) : Math.abs(shown[0]) || 1;
    const digits = Math.min(8, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    const tiny = digits > 4;
    const unit = kind === "share" ? " %" : kind === "seconds" ? " s" : "";
    return shown.map((value) => {
      const size = Math.abs(value);
      if (tiny && value === 0) return `0${unit}`;
      if (tiny) return value.toExponential(0).replace("e-", "e\u2212").replace(/^-/, "\u2212") + unit;
      if (size >= 1e6) return `${EG.format.fixed(value / 1e6, step < 1e6 ? 1 : 0)}M${unit}`;
      if (size >= 1e4) return `${EG.format.fixed(value / 1e3, step < 1e3 ? 1 : 0)}k${unit}`;
      return EG.format.fixed(value, digits) + unit;
    });
  }

  function extent(values) {
    let low = Infinity;
    let high = -Infinity;
    for (const value of values) {
      if (value === null || value === undefined) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return low <= high ? [low, high] : null;
  }

  return { linear, ticks, nice, tickLabels, extent };
})();
