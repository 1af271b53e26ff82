// Settings and versions, so that the run can be repeated.
EG.setup = (() => {
  const { h, section } = EG.dom;

  function render({ meta }) {
    const versions = Object.entries(meta.versions);
    if (!versions.length && !meta.settings) return null;
    return section(
      "setup",
      "Settings and versions",
      null,
      versions.length
        ? h("div", { class: "versions" }, versions.map(([name, version]) => h("span", {}, `${name} `, h("b", {}, version))))
        : null,
      meta.settings ? h("details", { class: "more" }, h("summary", {}, "Settings file"), h("pre", {}, EG.tokens.safe(meta.settings))) : null,
    );
  }

  return { render };
})();
