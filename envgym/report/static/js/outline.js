// The outline of a tree: one row per node, moved through with the keys of a tree. What is chosen is what is focused.
EG.outline = (() => {
  const { h, replace } = EG.dom;
  const f = EG.format;
  const FEW_ROWS = 40;

  function cell(column, node) {
    const value = column.of(node);
    const made = h("span", { class: `cell ${column.key}${value === 0 ? " muted" : ""}` }, value === null ? "" : column.shown(value));
    if (column.key !== "advantage" || value === null) return made;
    const all = Object.values(node.advantages);
    if (all.length > 1) made.title = `${f.plural(all.length, "episode")}: ${f.number(Math.min(...all))} to ${f.number(Math.max(...all))}`;
    made.style.background = EG.tokens.advantageColor(value);
    return made;
  }

  function spoken(item, columns) {
    const numbers = columns.map(({ key, of }) => [key, of(item.node)]).filter(([, value]) => value !== null);
    return [item.title, item.says, item.reply, item.status, ...numbers.map(([key, value]) => `${key} ${f.number(value)}`)].filter(Boolean).join("; ");
  }

  function makeRow(item, columns) {
    const { node, index, kind } = item;
    const mark = h("i", { class: "mark" });
    if (node.ending) mark.style.setProperty("--ink", EG.palette.ending(node.ending));
    return h(
      "div",
      { class: "node-row", role: "treeitem", "aria-level": item.level, "aria-label": spoken(item, columns), "aria-selected": "false", tabindex: -1, style: { "--indent": String(item.indent) }, data: { index: String(index), kind } },
      h(
        "span",
        { class: "node-name" },
        h("span", { class: "twisty" }),
        mark,
        h("b", {}, node.turn < 0 ? "" : node.ends_turn ? String(node.turn) : `${node.turn}\u2026`),
        h(
          "span",
          { class: "words" },
          h("span", { class: "says" }, item.says || (node.turn < 0 ? "" : "(nothing)")),
          item.reply ? h("span", { class: "reply", style: { "--chars": String(item.reply.length + 2) } }, `\u2192 ${item.reply}`) : null,
        ),
        item.status ? h("span", { class: "tag" }, item.status) : null,
      ),
      columns.map((column) => cell(column, node)),
    );
  }

  // Returns {element, show(model), select(index), filter(found), focus(), openAll(), closeAll()}.
  function make(onSelect) {
    const rowsBox = h("div", { class: "tree-rows", role: "tree", "aria-label": "Tree of turns" });
    const head = h("div", { class: "node-row tree-head", "aria-hidden": "true" });
    const element = h("div", { class: "outline" }, head, rowsBox);
    let model = null;
    let rows = [];
    let shown = [];
    let open = new Set();
    let found = null;
    let kept = null;
    let selected = 0;
    let marked = [];

    const childrenOf = (index) => model.items[index].children.filter((child) => !kept || kept.has(child));
    const isOpen = (index) => (kept ? true : open.has(index));

    // Rows as far as they are open, without recursion: chains may be long.
    function visible() {
      const stack = !kept || kept.has(0) ? [0] : [];
      const list = [];
      if (stack.length) place(0, 1, 1);
      while (stack.length) {
        const index = stack.pop();
        list.push(index);
        const children = isOpen(index) ? childrenOf(index) : [];
        children.forEach((child, i) => place(child, i + 1, children.length));
        stack.push(...children.reverse());
      }
      return list;
    }

    function place(index, position, size) {
      const row = (rows[index] ??= makeRow(model.items[index], model.columns));
      if (childrenOf(index).length) row.setAttribute("aria-expanded", String(isOpen(index)));
      else row.removeAttribute("aria-expanded");
      row.setAttribute("aria-posinset", position);
      row.setAttribute("aria-setsize", size);
      row.classList.toggle("hit", found !== null && found.has(index));
    }

    function draw() {
      const hadFocus = rowsBox.contains(document.activeElement);
      const top = rowsBox.scrollTop;
      shown = visible();
      replace(rowsBox, shown.map((index) => rows[index]));
      if (!shown.length) rowsBox.append(h("p", { class: "muted" }, "No node fits this filter."));
      rowsBox.scrollTop = top;
      mark();
      if (hadFocus) focus();
    }

    // Touches only the rows that change: a step through a large tree stays quick.
    function mark() {
      const path = EG.treeModel.path(model, selected);
      const isShown = shown.includes(selected);
      const focusable = isShown ? selected : shown[0];
      for (const index of marked) paint(index, { path: [], focusable: -1 });
      for (const index of [...path, focusable]) paint(index, { path, focusable });
      marked = [...path, focusable];
      if (isShown) reveal(rows[selected]);
    }

    function paint(index, { path, focusable }) {
      const row = rows[index];
      if (!row) return;
      row.setAttribute("aria-selected", String(path.length > 0 && index === selected));
      row.tabIndex = index === focusable ? 0 : -1;
      row.classList.toggle("on-path", path.includes(index));
    }

    // Scrolls the outline alone, never the page.
    function reveal(row) {
      const [start, end] = [row.offsetTop, row.offsetTop + row.offsetHeight];
      if (start < rowsBox.scrollTop) rowsBox.scrollTop = start;
      else if (end > rowsBox.scrollTop + rowsBox.clientHeight) rowsBox.scrollTop = end - rowsBox.clientHeight;
    }

    function focus() {
      const row = rowsBox.querySelector('[tabindex="0"]');
      if (row) row.focus({ preventScroll: true });
    }

    function select(index) {
      for (const above of EG.treeModel.path(model, index).slice(0, -1)) open.add(above);
      selected = index;
      if (shown.includes(index)) mark();
      else draw();
      onSelect(index);
    }

    function setOpen(index, isToBe) {
      if (isToBe) open.add(index);
      else open.delete(index);
      draw();
    }

    function openAll(isToBe) {
      open = new Set(isToBe ? model.items.map(({ index }) => index) : [0]);
      if (!isToBe) {
        // What is hidden cannot stay chosen.
        const [root, below = root] = EG.treeModel.path(model, selected);
        select(below);
      }
      draw();
    }

    function move(to) {
      if (to === undefined) return;
      select(to);
      focus();
    }

    const KEYS = {
      ArrowDown: () => move(shown[shown.indexOf(selected) + 1]),
      ArrowUp: () => move(shown[shown.indexOf(selected) - 1]),
      Home: () => move(shown[0]),
      End: () => move(shown[shown.length - 1]),
      ArrowRight() {
        if (!childrenOf(selected).length) return;
        if (isOpen(selected)) move(childrenOf(selected)[0]);
        else setOpen(selected, true);
      },
      ArrowLeft() {
        if (childrenOf(selected).length && isOpen(selected) && !kept) setOpen(selected, false);
        else move(model.items[selected].node.parent ?? undefined);
      },
      Enter: () => (childrenOf(selected).length && !kept ? setOpen(selected, !isOpen(selected)) : undefined),
      "*"() {
        for (let { index, last } = model.items[selected]; index <= last; index += 1) open.add(index);
        draw();
      },
    };
    KEYS[" "] = KEYS.Enter;

    rowsBox.addEventListener("keydown", (event) => {
      const act = KEYS[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    rowsBox.addEventListener("click", (event) => {
      const row = event.target.closest(".node-row");
      if (!row) return;
      const index = Number(row.dataset.index);
      move(index);
      if (event.target.closest(".twisty") && childrenOf(index).length && !kept) setOpen(index, !isOpen(index));
    });

    // Open from the top as long as the rows stay few.
    function openSome() {
      open = new Set();
      let count = 1;
      let level = [0];
      while (level.length) {
        const next = level.flatMap((index) => model.items[index].children);
        if (open.size && count + next.length > FEW_ROWS) break;
        level.forEach((index) => open.add(index));
        count += next.length;
        level = next;
      }
    }

    function show(newModel) {
      [model, rows, marked, selected, found, kept] = [newModel, [], [], 0, null, null];
      replace(head, h("span", {}, "turn"), model.columns.map(({ key, name, title }) => h("span", { class: `cell ${key}`, title }, name)));
      openSome();
      draw();
      rowsBox.scrollTop = 0;
      onSelect(0);
    }

    // `newFound`: a set of nodes, shown with all above them; null shows the tree as it is open.
    function filter(newFound) {
      found = newFound;
      kept = found && new Set([...found].flatMap((index) => EG.treeModel.path(model, index)));
      const first = found && model.items.find(({ index }) => found.has(index));
      if (first && !found.has(selected)) selected = first.index;
      for (const above of EG.treeModel.path(model, selected).slice(0, -1)) open.add(above);
      rowsBox.scrollTop = 0;
      draw();
      onSelect(selected);
    }

    return { element, show, select, filter, focus, openAll };
  }

  return { make };
})();
