// Numbers as a person reads them. Kinds: "share" (shown in %), "seconds", "count", "number".
EG.format = (() => {
  const MINUS = "\u2212";
  const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  function signed(text) {
    return text.replace(/^-/, MINUS);
  }

  // Ties go to the even digit, as on the command line: 1 of 400 is 0.2 % on both.
  const decimals = new Map();
  function fixed(value, digits) {
    if (!decimals.has(digits)) {
      const options = { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false, roundingMode: "halfEven" };
      decimals.set(digits, new Intl.NumberFormat("en", options));
    }
    const text = decimals.get(digits).format(value);
    return signed(Number(text) === 0 ? text.replace("-", "") : text);
  }

  function number(value) {
    if (value === null || value === undefined) return "\u2013";
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 10000) return signed(grouped.format(value));
    if (size < 0.001) return signed(value.toExponential(1)).replace("e-", "e" + MINUS);
    if (Number.isInteger(value)) return signed(String(value));
    return fixed(value, Math.max(0, 2 - Math.floor(Math.log10(size))));
  }

  function percent(value, digits = 1) {
    return value === null || value === undefined ? "\u2013" : `${fixed(value * 100, digits)} %`;
  }

  function points(value, digits = 1) {
    const text = fixed(value * 100, digits);
    return Number(text.replace(MINUS, "-")) > 0 ? `+${text}` : text;
  }

  function seconds(value) {
    if (value === null || value === undefined) return "\u2013";
    if (value < 1) return `${number(value * 1000)} ms`;
    if (value < 120) return `${number(value)} s`;
    if (value < 7200) return `${Math.floor(value / 60)} min ${String(Math.round(value % 60)).padStart(2, "0")} s`;
    return `${Math.floor(value / 3600)} h ${String(Math.round((value % 3600) / 60)).padStart(2, "0")} min`;
  }

  function count(value) {
    return value === null || value === undefined ? "\u2013" : Number.isInteger(value) ? grouped.format(value) : number(value);
  }

  const KINDS = { share: percent, seconds, count, number };

  function as(kind, value) {
    return KINDS[kind](value);
  }

  function interval(estimate) {
    const { low, high, level } = estimate.interval;
    return `${fixed(low * 100, 1)} to ${fixed(high * 100, 1)} %, ${fixed(level * 100, 0)} % interval`;
  }

  function pValue(value) {
    return value < 0.001 ? "p < 0.001" : `p = ${value.toFixed(3)}`;
  }

  function plural(value, word, words = `${word}s`) {
    return `${count(value)} ${value === 1 ? word : words}`;
  }

  // "loss/clip_fraction" -> "clip fraction", "time/collect_s" -> "collect"
  function keyName(key) {
    const name = key.slice(key.lastIndexOf("/") + 1);
    const words = (key.startsWith("time/") ? name.replace(/_s$/, "") : name).replaceAll("_", " ");
    return words.replace(/^(zero|low) variance$/, "$1 reward variance"); // why a filter dropped a group
  }

  // "2026-01-05T12:30:00Z" -> "2026-01-05 12:30 UTC"; anything else stays as it is.
  function when(text) {
    const parts = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:[\d.]+)?(Z|\+00:00)$/.exec(text);
    return parts ? `${parts[1]} ${parts[2]} UTC` : text;
  }

  // Every evaluation is on held-out tasks; its label may say so already.
  function evaluation(label) {
    return label.startsWith("held-out") ? label : `held-out, ${label}`;
  }

  // "TRUNCATED_TOKENS" -> "truncated: tokens"
  function ending(name) {
    const [head, ...rest] = name.toLowerCase().split("_");
    return rest.length ? `${head}: ${rest.join(" ")}` : head;
  }

  return { number, percent, points, seconds, count, as, interval, pValue, plural, keyName, ending, fixed, when, evaluation };
})();
