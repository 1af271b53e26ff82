// The whole tree at a glance: a level of nodes is a row, a node is as wide as the branches below it. For the pointer;
// the outline says the same to the keyboard.
EG.treeMap = (() => {
  const { h, s, replace } = EG.dom;
  const f = EG.format;
  const WIDTH = 1000;
  const MOST_HEIGHT = 132;
  const NARROW = 4;

  function places(items) {
    const wide = items.map(() => 0);
    for (const { node, index, children } of items.slice().reverse()) {
      if (!children.length) wide[index] = 1;
      if (node.parent !== null) wide[node.parent] += wide[index];
    }
    const left = items.map(() => 0);
    for (const { index, children } of items) {
      let at = left[index];
      for (const child of children) {
        left[child] = at;
        at += wide[child];
      }
    }
    return { wide, left };
  }

  function fillOf({ node }, [low, high]) {
    if (node.mean_reward === null) return "var(--hover)";
    const share = high > low ? (node.mean_reward - low) / (high - low) : 0;
    return `color-mix(in srgb, var(--c1) ${Math.round(10 + 80 * share)}%, var(--surface))`;
  }

  // Returns {element, show(model), mark(path)}.
  function make(onSelect) {
    const drawing = s("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    const scale = h("span", { class: "ramp" });
    const none = h("span", {}, h("i", { class: "none" }), "no valid episode");
    const element = h("figure", { class: "tree-map" }, drawing, h("figcaption", {}, scale, none));
    let boxes = [];
    let marked = [];
    drawing.addEventListener("click", (event) => {
      const at = boxes.indexOf(event.target);
      if (at >= 0) onSelect(at);
    });

    function show({ items }) {
      const levels = Math.max(...items.map(({ level }) => level));
      const size = Math.max(4, Math.min(20, Math.floor(MOST_HEIGHT / levels)));
      const { wide, left } = places(items);
      const unit = WIDTH / wide[0];
      // The scale holds 0, so that a tree with equal rewards has the colour of that reward.
      const ends = EG.scale.extent([0, ...items.map(({ node }) => node.mean_reward)]);
      boxes = items.map((item) =>
        s(
          "rect",
          { data: { kind: item.kind }, x: left[item.index] * unit, y: (item.level - 1) * size, width: wide[item.index] * unit, height: size, fill: fillOf(item, ends) },
          s("title", {}, [item.title, item.status, item.says].filter(Boolean).join(": ")),
        ),
      );
      drawing.classList.toggle("is-dense", unit < NARROW); // else the gaps would hide the boxes
      drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${levels * size}`);
      drawing.style.height = `${levels * size}px`;
      replace(drawing, boxes);
      const means = items.map(({ node }) => node.mean_reward);
      const isNone = means.every((mean) => mean === null);
      // A scale from 0 to 0 says nothing.
      const ramp = ends[0] < ends[1] ? [h("span", {}, "mean reward"), f.number(ends[0]), h("i", {}), f.number(ends[1])] : "mean reward 0 everywhere";
      replace(scale, isNone ? null : ramp);
      none.hidden = !means.includes(null);
    }

    function mark(path) {
      for (const index of marked) if (boxes[index]) boxes[index].classList.remove("on-path", "is-chosen");
      for (const index of path) boxes[index].classList.add("on-path");
      boxes[path[path.length - 1]].classList.add("is-chosen");
      marked = path;
    }

    return { element, show, mark };
  }

  return { make };
})();
