// Puts a page together. A view is a list of [anchor, name, element]; what has nothing to show is left out.
EG.views = {
  report(report) {
    return [
      ["overview", "Overview", EG.header.render(report)],
      ["curves", "Curves", EG.curves.learning()],
      ["evaluation", "Evaluation", EG.evaluation.render(report)],
      ["training", "Training", EG.curves.episodesOverTime()],
      ["episodes", "Episodes", EG.episodes.render()],
      ["trees", "Trees", EG.trees.render(report)],
      ["setup", "Setup", EG.setup.render(report)],
    ];
  },
  tree(report) {
    return [
      ["trees", "Tree", EG.trees.page(report)],
      ["setup", "Setup", EG.setup.render(report)],
    ];
  },
};

(() => {
  const { h } = EG.dom;
  const parts = EG.views[document.body.dataset.view](EG.data.report).filter(([, , element]) => element);
  const links = parts.map(([id, name]) => h("a", { href: `#${id}` }, name));
  const name = h("span", { class: "nav-name" }, EG.data.report.meta.name);
  document.getElementById("app").append(
    h("nav", { "aria-label": "Sections" }, name, links),
    h("main", {}, parts.map(([, , element]) => element)),
  );
  // The first episode is inflated: a moment, also where there are thousands.
  const drawn = parts.some(([id]) => id === "episodes") ? EG.episodes.drawn() : null;
  Promise.resolve(drawn).then(() => (document.body.dataset.ready = "true"));
})();
