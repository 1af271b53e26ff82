// Success by task, the failures first: one column per evaluation of a label.
EG.tasks = (() => {
  const { h, replace, select } = EG.dom;
  const f = EG.format;
  const PART = 25;
  const MOST_COLUMNS = 6;

  // The evaluations that are shown: the first and the latest ones.
  const columnsOf = (evaluations) => (evaluations.length <= MOST_COLUMNS ? evaluations : [evaluations[0], ...evaluations.slice(1 - MOST_COLUMNS)]);

  // Where no sample is valid nothing is known, which comes before every failure.
  const share = (counts) => (counts && counts.valid ? counts.successes / counts.valid : -1);

  function cell(counts) {
    if (!counts) return h("td", { class: "num" }, "\u2013");
    const invalid = counts.samples - counts.valid;
    const level = counts.valid ? Math.round((100 * counts.successes) / counts.valid) : 0;
    const bar = h("i", { class: "level", style: { "--level": `${level}%` } });
    return h("td", {}, bar, `${f.count(counts.successes)} of ${f.count(counts.valid)}`, invalid ? h("small", {}, `${f.count(invalid)} invalid`) : null);
  }

  function render(evaluations, episodes) {
    const questions = new Map(episodes.map(({ task_id, source, question }) => [`${source}\n${task_id}`, question]));
    const labels = [...new Set(evaluations.map(({ label }) => label))];
    const head = h("thead", {});
    const body = h("tbody", {});
    let [label, text] = [labels[0], ""];
    let columns = [];

    function row([id, question]) {
      const open = h("button", { type: "button", class: "link", on: { click: () => EG.episodes.showTask(id, label) } }, EG.tokens.safe(id));
      const isShown = questions.has(`${label}\n${id}`);
      return h("tr", {}, h("td", {}, isShown ? open : EG.tokens.safe(id)), columns.map(({ tasks }) => cell(tasks[id])), h("td", { class: "asked" }, EG.tokens.safe(question)));
    }

    const pager = EG.pager.make(PART, "task", (part) => replace(body, part.map(row)));

    function show() {
      const last = columns[columns.length - 1].tasks;
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = Object.keys(last)
        .map((id) => [id, questions.get(`${label}\n${id}`) || ""])
        .filter(([id, question]) => words.every((word) => `${id} ${question}`.toLowerCase().includes(word)))
        .sort(([a], [b]) => share(last[a]) - share(last[b]));
      pager.show(rows);
    }

    function choose(name) {
      label = name;
      columns = columnsOf(evaluations.filter((evaluation) => evaluation.label === label));
      const steps = columns.map(({ step }) => (columns.length > 1 ? `Step ${f.count(step)}` : "Success"));
      replace(head, h("tr", {}, ["Task", ...steps, "Prompt"].map((name) => h("th", { scope: "col" }, name))));
      show();
    }

    choose(label);
    const find = h("input", { type: "search", placeholder: "task or words of its prompt", "aria-label": "Find tasks", on: { input: (event) => { text = event.target.value; show(); } } });
    return h(
      "details",
      { class: "more", id: "tasks", open: evaluations.length === 1 },
      h("summary", {}, "Success by task, failures first"),
      h("div", { class: "controls" }, labels.length > 1 ? select("Evaluation", labels.map((name) => [name, name]), label, choose) : null, h("label", { class: "field" }, h("span", {}, "Find"), find), pager.element),
      h("div", { class: "scroll card" }, h("table", { class: "tasks" }, head, body)),
    );
  }

  return { render };
})();
