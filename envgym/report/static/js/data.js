// The embedded data, and the views of it that several sections need.
EG.data = (() => {
  const report = JSON.parse(document.getElementById("envgym-data").textContent);

  const keys = [...new Set(report.metrics.flatMap((row) => Object.keys(row.values)))];

  // Points of one metric; steps without it are left out, None stays as a gap.
  function points(key) {
    return report.metrics.filter((row) => key in row.values).map((row) => ({ x: row.step, y: row.values[key] }));
  }

  // Points with the interval that "key_low" and "key_high" give, where they exist.
  function pointsWithInterval(key) {
    const withEnds = keys.includes(`${key}_low`) && keys.includes(`${key}_high`);
    if (!withEnds) return points(key);
    return report.metrics
      .filter((row) => key in row.values)
      .map(({ step, values }) => ({ x: step, y: values[key], low: values[`${key}_low`], high: values[`${key}_high`] }));
  }

  const isIntervalEnd = (key) => /_(low|high)$/.test(key) && keys.includes(key.replace(/_(low|high)$/, ""));

  const labels = [...new Set(report.evaluations.map((evaluation) => evaluation.label))];

  // Evaluations of one label as points with intervals; those without a valid sample are left out.
  function evaluationPoints(label) {
    return report.evaluations
      .filter((evaluation) => evaluation.label === label && evaluation.success.valid)
      .map(({ step, success: { valid } }) => ({
        x: step,
        y: valid.value,
        low: valid.interval.low,
        high: valid.interval.high,
      }));
  }

  // The large parts of episodes come in deflated pages of some episodes each; a page is inflated when it is looked at.
  const inflated = new Map();

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).json();
  }

  function page(number) {
    if (!inflated.has(number)) inflated.set(number, inflate(report.pages[number]));
    return inflated.get(number);
  }

  report.episodes.forEach((episode, index) => (episode.index = index));

  // An episode with its prompt and its turns.
  async function whole(episode) {
    const { page_size } = report;
    const bodies = await page(Math.floor(episode.index / page_size));
    return { ...episode, ...bodies[episode.index % page_size] };
  }

  function* tokensOf(episode) {
    for (const segment of episode.prompt) yield segment;
    for (const turn of episode.turns) for (const segment of turn.segments) yield segment;
  }

  const wordsOf = (episode) =>
    [
      ...[...tokensOf(episode)].map(({ token_strings }) => token_strings.join("")),
      ...episode.messages.map(({ text }) => text),
      ...episode.turns.flatMap(({ action, observation }) => [action, observation]),
    ].join("\n");

  // All that was said in each episode, in lower case, made once; `onPart` is told how many episodes are through.
  let texts = null;
  async function allTexts(onPart) {
    if (texts) return texts;
    const found = [];
    for (let number = 0; number < report.pages.length; number += 1) {
      const bodies = inflated.has(number) ? await inflated.get(number) : await inflate(report.pages[number]);
      for (const body of bodies) found.push(wordsOf(body).toLowerCase());
      onPart(found.length);
    }
    texts = found;
    return texts;
  }

  return { report, keys, points, pointsWithInterval, isIntervalEnd, labels, evaluationPoints, whole, allTexts, tokensOf };
})();
