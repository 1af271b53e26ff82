// Building elements. Text always goes in as text nodes, never as markup: model output is hostile.
const EG = {};

EG.dom = (() => {
  // Read from the page, so that the bundle names no address.
  const SVG = document.getElementById("svg-seed").namespaceURI;

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") {
        for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
      } else if (name === "style") {
        for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
      } else if (name === "data") {
        Object.assign(node.dataset, value);
      } else if (name === "value" || name === "checked" || name === "disabled") {
        node[name] = value;
      } else {
        node.setAttribute(name, value === true ? "" : String(value));
      }
    }
    append(node, children);
    return node;
  }

  function append(node, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }

  function h(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function s(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  function replace(node, ...children) {
    node.replaceChildren();
    append(node, children);
    return node;
  }

  // A titled part of the page; `note` is one muted sentence under the title.
  function section(id, title, note, ...children) {
    return h(
      "section",
      { id, "aria-labelledby": `${id}-title` },
      h("h2", { id: `${id}-title` }, title),
      note ? h("p", { class: "note" }, note) : null,
      ...children,
    );
  }

  function select(label, options, value, onChange) {
    return h(
      "label",
      { class: "field" },
      h("span", {}, label),
      h(
        "select",
        { "aria-label": label, on: { change: (event) => onChange(event.target.value) } },
        options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
      ),
    );
  }

  // One of several choices, as buttons that a keyboard reaches.
  function choice(label, options, value, onChange) {
    const buttons = options.map(([key, text]) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(key === value),
          on: {
            click: () => {
              buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(options[i][0] === key)));
              onChange(key);
            },
          },
        },
        text,
      ),
    );
    return h("div", { class: "choice", role: "group", "aria-label": label }, h("span", {}, label), buttons);
  }

  return { h, s, replace, section, select, choice };
})();
