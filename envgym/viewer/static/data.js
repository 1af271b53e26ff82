// Stands in for the report's embedded data: what the shared scripts read of it.
EG.data = (() => {
  const report = { advantage_scale: 0, episodes: [] };

  function* tokensOf(episode) {
    for (const segment of episode.prompt) yield segment;
    for (const turn of episode.turns) for (const segment of turn.segments) yield segment;
  }

  // Colours of advantages are relative to the largest one that is shown.
  function scaleTo(segments) {
    let largest = 0;
    for (const { advantages } of segments) for (const value of advantages) largest = Math.max(largest, Math.abs(value));
    report.advantage_scale = largest;
  }

  return { report, tokensOf, scaleTo };
})();
