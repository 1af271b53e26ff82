// Colours, all from the style sheet, so that light and dark follow the reader's setting.
EG.palette = (() => {
  const SERIES = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)", "var(--c7)"];
  const DASHES = [null, null, null, "7 3", "2 3", "9 3 2 3", "4 4"];
  const MARKS = ["circle", "diamond", "square", "triangle"];

  const ENDINGS = {
    TERMINATED: "var(--c1)",
    TRUNCATED_TURNS: "var(--e1)",
    TRUNCATED_TOKENS: "var(--e2)",
    TRUNCATED_TIME: "var(--e3)",
    TRUNCATED_BUDGET: "var(--e4)",
    ERROR_ENV: "var(--x1)",
    ERROR_TOOL_INFRA: "var(--x2)",
    ERROR_POLICY: "var(--x3)",
    ERROR_PARTY: "var(--x4)",
    ERROR_ABORTED: "var(--x5)",
  };

  return {
    series: (i) => SERIES[i % SERIES.length],
    dash: (i) => DASHES[i % DASHES.length],
    mark: (i) => MARKS[i % MARKS.length],
    ending: (name) => ENDINGS[name] || "var(--muted)",
    endingOrder: Object.keys(ENDINGS),
    before: "var(--c2)",
    after: "var(--c1)",
    win: "var(--c1)",
    tie: "var(--tie)",
    loss: "var(--c2)",
  };
})();
