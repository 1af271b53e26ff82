// A tree, drawn: the root at the left, a level per column, a leaf per line. The size of a node tells its visits.
const { h, s, replace } = EG.dom;
const f = EG.format;

const [LEAST_COLUMN, MOST_COLUMN] = [58, 300];
const LEAST_SCALE = 0.6;
const LINE = 24;
const MARGIN = 26;
const [LEAST_RADIUS, RADIUS] = [4, 11];

export const visitsOf = ({ node }) => (node.stats ? node.stats.visits : node.num_episodes);
export const VALUES = {
  value: ({ node }) => (node.stats ? node.stats.value : null),
  outcome: ({ node }) => node.mean_reward,
  advantage: ({ node }) => EG.treeModel.advantageOf(node),
};

// Leaves stand under each other in the order of the tree; a node stands in the middle of its children.
function places(items, column) {
  const y = items.map(() => 0);
  let lines = 0;
  const stack = [0];
  const order = [];
  while (stack.length) {
    const index = stack.pop();
    order.push(index);
    const { children } = items[index];
    if (!children.length) y[index] = lines++;
    stack.push(...children.slice().reverse());
  }
  for (const index of order.reverse()) {
    const { children } = items[index];
    if (children.length) y[index] = (y[children[0]] + y[children[children.length - 1]]) / 2;
  }
  return items.map((item, index) => [MARGIN + (item.level - 1) * column, MARGIN + y[index] * LINE]);
}

const heightOf = () => Math.max(300, innerHeight * 0.6);

function colorOf(value, [low, high], name) {
  if (value === null) return "var(--hover)";
  if (name === "advantage" || low < 0) {
    const share = Math.abs(value) / (Math.max(-low, high) || 1);
    return `color-mix(in srgb, var(${value >= 0 ? "--gain" : "--fall"}) ${Math.round(8 + 84 * share)}%, var(--surface))`;
  }
  const share = high > 0 ? value / high : 0;
  return `color-mix(in srgb, var(--c1) ${Math.round(8 + 84 * share)}%, var(--surface))`;
}

function shape(item, radius) {
  if (item.kind !== "pruned") return s("circle", { r: radius });
  const arm = radius * 0.75;
  return [s("circle", { r: radius }), s("path", { class: "cut", d: `M${-arm} ${-arm}L${arm} ${arm}M${-arm} ${arm}L${arm} ${-arm}` })];
}

// Returns {element, color(name), select(index), reveal(count), zoom(factor), fit(), legend}.
// `room`: the width that the page has for it.
export function drawTree(model, room, onSelect) {
  const { items } = model;
  const levels = Math.max(...items.map(({ level }) => level));
  const lines = items.filter(({ children }) => !children.length).length;
  const tall = 2 * MARGIN + (lines - 1) * LINE;
  // Where the height decides the scale, columns are wider, so that the tree fills its card.
  const expected = Math.min(1.3, Math.max(LEAST_SCALE, heightOf() / tall));
  const column = Math.min(MOST_COLUMN, Math.max(LEAST_COLUMN, (room / expected - 2 * MARGIN - 20) / Math.max(1, levels - 1)));
  const at = places(items, column);
  const [width, height] = [2 * MARGIN + (levels - 1) * column, tall];
  const most = Math.max(1, ...items.map(visitsOf));
  const radius = items.map((item) => LEAST_RADIUS + (RADIUS - LEAST_RADIUS) * Math.sqrt(visitsOf(item) / most));
  const edges = items.map(({ node, index, kind }) => {
    if (node.parent === null) return null;
    const [[x0, y0], [x1, y1]] = [at[node.parent], at[index]];
    const middle = (x0 + x1) / 2;
    return s("path", { class: "edge", d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`, data: { kind } });
  });
  const nodes = items.map((item) => {
    const [x, y] = at[item.index];
    const why = item.kind === "pruned" ? `pruned: ${item.node.stats.pruned}` : item.status;
    const text = [`node ${item.index}, ${item.title}`, why, item.says, `${f.plural(visitsOf(item), item.node.stats ? "visit" : "episode")}`].filter(Boolean).join("\n");
    return s("g", { class: "tree-node", transform: `translate(${x} ${y})`, data: { index: String(item.index), kind: item.kind } }, shape(item, radius[item.index]), s("title", {}, EG.tokens.safe(text)));
  });
  const drawing = s("svg", { class: "tree-drawing", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "group", "aria-label": `Tree of ${items.length} nodes; arrow keys walk through it` }, edges.filter(Boolean), nodes);
  const element = h("div", { class: "tree-scroll card" }, drawing);
  const legend = h("span", { class: "ramp" });
  let scale = 1;
  let selected = 0;
  let shown = items.length;

  drawing.addEventListener("click", (event) => {
    const hit = event.target.closest(".tree-node");
    if (hit) onSelect(Number(hit.dataset.index));
  });

  function color(name) {
    const values = items.map(VALUES[name]);
    const ends = EG.scale.extent([0, ...values.filter((value) => value !== null)]);
    nodes.forEach((node, index) => node.style.setProperty("--fill", colorOf(values[index], ends, name)));
    const isSigned = name === "advantage" || ends[0] < 0;
    replace(legend, values.every((value) => value === null) ? `no node has this ${name}` : [f.number(isSigned ? -Math.max(-ends[0], ends[1]) : 0), h("i", { class: isSigned ? "advantage" : "value" }), f.number(Math.max(-ends[0], ends[1]))]);
  }

  function select(index, isQuiet = false) {
    const path = EG.treeModel.path(model, index);
    nodes.forEach((node, i) => {
      node.classList.toggle("is-chosen", i === index);
      node.classList.toggle("on-path", path.includes(i));
      if (edges[i]) edges[i].classList.toggle("on-path", path.includes(i));
    });
    selected = index;
    if (!isQuiet) into(index);
  }

  // Scrolls the drawing alone, never the page.
  function into(index) {
    const [x, y] = at[index].map((value) => value * scale);
    const room = 40;
    if (x < element.scrollLeft + room) element.scrollLeft = x - room;
    else if (x > element.scrollLeft + element.clientWidth - room) element.scrollLeft = x - element.clientWidth + room;
    if (y < element.scrollTop + room) element.scrollTop = y - room;
    else if (y > element.scrollTop + element.clientHeight - room) element.scrollTop = y - element.clientHeight + room;
  }

  // The tree as it was when `count` nodes had been recorded.
  function reveal(count) {
    for (let index = Math.min(count, shown); index < Math.max(count, shown); index += 1) {
      nodes[index].classList.toggle("is-later", index >= count);
      if (edges[index]) edges[index].classList.toggle("is-later", index >= count);
    }
    nodes[count - 1].classList.add("is-new");
    if (shown !== count && nodes[shown - 1]) nodes[shown - 1].classList.remove("is-new");
    shown = count;
    if (count < items.length) into(count - 1);
    else nodes[count - 1].classList.remove("is-new");
  }

  function zoom(factor) {
    scale = Math.min(3, Math.max(0.15, scale * factor));
    drawing.setAttribute("width", Math.round(width * scale));
    drawing.setAttribute("height", Math.round(height * scale));
    into(selected);
  }

  function fit() {
    scale = 1;
    const [wide, both] = [(element.clientWidth - 20) / width, heightOf() / height];
    zoom(Math.min(1.3, Math.max(LEAST_SCALE, both < LEAST_SCALE ? Math.min(1, wide) : Math.min(wide, both))));
  }

  // Where an arrow key leads from a node; null: nowhere.
  function neighbour(index, key) {
    const { node, children, level } = items[index];
    if (key === "ArrowLeft") return node.parent;
    if (key === "ArrowRight") return children[0] ?? null;
    const column = items.filter((item) => item.level === level && item.index < shown).sort((a, b) => at[a.index][1] - at[b.index][1]);
    const next = column[column.findIndex((item) => item.index === index) + (key === "ArrowDown" ? 1 : -1)];
    return next ? next.index : null;
  }

  return { element, drawing, legend, color, select, reveal, zoom, fit, neighbour };
}
