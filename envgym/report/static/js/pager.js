// A long list, some of its items at a time: "1 to 100 of 1,200", and buttons to the parts before and after.
EG.pager = (() => {
  const { h } = EG.dom;
  const f = EG.format;

  // Returns {element, show(items, at), of(item)}; `draw` is given the items of the part that is shown.
  function make(size, what, draw) {
    let items = [];
    let start = 0;
    const where = h("span", { class: "muted", role: "status" });
    const button = (text, label, by) => h("button", { type: "button", "aria-label": label, on: { click: () => go(start + by * size) } }, text);
    const [before, after] = [button("\u2039", `Earlier ${what}s`, -1), button("\u203a", `Later ${what}s`, 1)];
    const element = h("div", { class: "pager" }, before, where, after);

    function go(to) {
      start = Math.max(0, Math.min(to, Math.floor(Math.max(0, items.length - 1) / size) * size));
      const shown = items.slice(start, start + size);
      before.disabled = start === 0;
      after.disabled = start + size >= items.length;
      element.classList.toggle("is-whole", items.length <= size);
      where.textContent = `${f.count(start + 1)} to ${f.count(start + shown.length)} of ${f.count(items.length)}`;
      draw(shown);
    }

    return {
      element,
      // Shows the part that holds the item at place `at`.
      show(newItems, at = 0) {
        items = newItems;
        go(Math.floor(Math.max(0, at) / size) * size);
      },
      reveal(item) {
        const at = items.indexOf(item);
        if (at >= 0 && (at < start || at >= start + size)) go(Math.floor(at / size) * size);
      },
    };
  }

  return { make };
})();
