// What is on the page, as a flat list of nodes in reading order: accessible role and name, state, and for what has no
// words its color and place. Each element keeps its number until the next episode.
(() => {
  "use strict";
  const SKIPPED_IDS = new Set(["query", "reward-display", "sync-task-cover", "click-canvas", "attention-canvas"]);
  const SKIPPED_TAGS = new Set([
    "SCRIPT", "STYLE", "TEMPLATE", "HEAD", "NOSCRIPT", "OPTION", "OPTGROUP", "BR", "DEFS",
    "DESC", "METADATA",
  ]);
  const ROLES = {
    A: "link", BUTTON: "button", TEXTAREA: "textbox", SELECT: "combobox", IMG: "img", TR: "row", LI: "listitem",
    CANVAS: "canvas", SUMMARY: "button", DIALOG: "dialog", H1: "heading", H2: "heading", H3: "heading", H4: "heading",
    H5: "heading", H6: "heading",
  };
  const INPUT_ROLES = {
    button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio",
    range: "slider", number: "spinbutton", search: "searchbox", date: "date", time: "time", color: "color",
  };
  // Their words say what they are; what else lies in them is decoration.
  const WORDED = new Set(["button", "link", "tab", "heading", "menuitem", "option", "listitem"]);
  const BARE_IDS = new Set(["wrap", "area"]);
  const POINTER_EVENTS = new Set(["click", "dblclick", "mousedown", "mouseup", "mousemove", "mouseover", "mouseenter"]);
  const MAX_NAME = 2000;
  const heard = new WeakMap();
  let numbers = new WeakMap();
  let elements = [];

  for (const [name, change] of [["addEventListener", "add"], ["removeEventListener", "delete"]]) {
    const real = EventTarget.prototype[name];
    EventTarget.prototype[name] = function (type, listener, options) {
      if (this instanceof Element && listener && POINTER_EVENTS.has(type)) {
        if (!heard.has(this)) heard.set(this, new Set());
        heard.get(this)[change](type);
      }
      return real.call(this, type, listener, options);
    };
  }

  const squeezed = (text) => (text || "").replace(/\s+/g, " ").trim().slice(0, MAX_NAME);
  const isText = (node) => node.role === "";
  const listens = (element) =>
    (heard.get(element) || new Set()).size > 0 || element.onclick !== null || element.hasAttribute("tabindex");

  const numberOf = (element) => {
    if (!numbers.has(element)) numbers.set(element, elements.push(element));
    return numbers.get(element);
  };

  const isHidden = (element) =>
    SKIPPED_TAGS.has(element.tagName.toUpperCase()) || SKIPPED_IDS.has(element.id) || element.type === "hidden" ||
    getComputedStyle(element).display === "none";

  const roleOf = (element) => {
    const given = (element.getAttribute("role") || "").split(" ")[0];
    if (given === "presentation" || given === "none") return "";
    if (element.tagName === "INPUT") return INPUT_ROLES[element.type] || "textbox";
    if (element instanceof SVGElement && !["svg", "g", "tspan"].includes(element.tagName)) return element.tagName;
    if (element.isContentEditable && !element.parentElement.isContentEditable) return "textbox";
    return given || ROLES[element.tagName] || (listens(element) ? "clickable" : "");
  };

  const nameOf = (element, inner) => {
    const given = element.getAttribute("aria-label") || element.getAttribute("alt") || element.title;
    if (given) return squeezed(given);
    if (element.labels && element.labels.length) return squeezed([...element.labels].map((l) => l.textContent).join(" "));
    if (element.tagName === "INPUT" && INPUT_ROLES[element.type] === "button") return squeezed(element.value);
    if (element.placeholder) return squeezed(element.placeholder);
    if (inner.length && inner.every(isText)) return squeezed(inner.map((node) => node.name).join(" "));
    return "";
  };

  // What an element without words is called by its author.
  const nickname = (element) => squeezed(`${element.id} ${element.getAttribute("class") || ""}`);

  const valueOf = (element) => {
    if (element.tagName === "SELECT") return [...element.selectedOptions].map((o) => squeezed(o.text)).join(", ");
    if (element.isContentEditable) return squeezed(element.textContent);
    return element.value.slice(0, MAX_NAME);
  };

  const hex = (color) => {
    const parts = (color.match(/[\d.]+/g) || []).map(Number);
    if (parts.length < 3 || parts[3] === 0) return "";
    return "#" + parts.slice(0, 3).map((part) => Math.round(part).toString(16).padStart(2, "0")).join("");
  };

  const boxOf = (element) => {
    const box = element.getBoundingClientRect();
    const values = [box.x + scrollX, box.y + scrollY, box.width, box.height];
    return values.map((value) => Math.round(value));
  };

  const isScrollable = (element) =>
    element.scrollHeight > element.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(element).overflowY);

  const stateOf = (element, role) => {
    const state = {};
    if (["checkbox", "radio"].includes(role) && "checked" in element) state.checked = element.checked;
    else if (["textbox", "combobox", "slider", "spinbutton", "searchbox", "date", "time", "color"].includes(role))
      if ("value" in element || element.isContentEditable) state.value = valueOf(element);
    if (element.tagName === "SELECT") state.options = [...element.options].map((option) => squeezed(option.text));
    if (element.getAttribute("aria-selected") === "true") state.selected = true;
    if (element.hasAttribute("aria-expanded")) state.expanded = element.getAttribute("aria-expanded") === "true";
    if (element.tagName === "TEXTAREA") state.multiline = true;
    if (element.disabled) state.disabled = true;
    if (element === document.activeElement && element !== document.body) state.focused = true;
    if (isScrollable(element)) {
      state.scrolled = [Math.round(element.scrollTop), element.scrollHeight - element.clientHeight];
    }
    return state;
  };

  // Give what has no words its looks: color and box.
  const looksOf = (element) => {
    const style = getComputedStyle(element);
    const isDrawn = element instanceof SVGElement;
    const color = hex(isDrawn && style.fill !== "none" ? style.fill : isDrawn ? style.stroke : style.backgroundColor);
    return color ? { color, box: boxOf(element) } : { box: boxOf(element) };
  };

  const isSeen = (element) => {
    const box = element.getBoundingClientRect();
    const isFlat = element instanceof SVGElement && box.width + box.height > 0;
    return isFlat || (box.width > 1 && box.height > 1 && getComputedStyle(element).visibility !== "hidden");
  };

  const hasLooks = (element) => {
    const style = getComputedStyle(element);
    return hex(style.backgroundColor) !== "" || style.backgroundImage !== "none";
  };

  const inside = (element) => {
    const found = [];
    for (const child of element.childNodes) {
      if (child instanceof Text) {
        const text = squeezed(child.data);
        if (text && getComputedStyle(element).visibility !== "hidden") found.push({ role: "", name: text, depth: 0 });
      } else if (child instanceof Element && !isHidden(child)) found.push(...nodesOf(child));
    }
    return found;
  };

  const leaf = (element, role, name, state) => ({ id: numberOf(element), role, name, depth: 0, ...state });
  const deeper = (nodes) => nodes.map((node) => ({ ...node, depth: node.depth + 1 }));

  const nodesOf = (element) => {
    const role = roleOf(element);
    if (role !== "") numberOf(element); // Before what lies inside it.
    const inner = element.tagName === "TEXTAREA" ? [] : inside(element);
    if (element.tagName === "LABEL" && element.control) return inner.filter((node) => !isText(node));
    if (role === "" && isScrollable(element)) return withInner(element, "region", inner);
    if (role !== "") return isSeen(element) || inner.length ? withInner(element, role, inner) : inner;
    if (inner.length === 0) {
      const isBlank = BARE_IDS.has(element.id) || !(isSeen(element) && hasLooks(element));
      return isBlank ? [] : [leaf(element, "box", nickname(element), looksOf(element))];
    }
    if (!inner.every(isText)) return inner.map((node) => (isText(node) ? { ...node, role: "text" } : node));
    const isInline = getComputedStyle(element).display === "inline";
    if (isInline) return inner;
    if (["TD", "TH"].includes(element.tagName)) return [{ role: "", name: `${joined(inner)} |`, depth: 0 }];
    return [leaf(element, "text", joined(inner), {})];
  };

  const joined = (inner) => squeezed(inner.map((node) => node.name).join(" "));

  // A text inside an element of words is part of its words.
  const bare = (node) => (node.role === "text" && node.box === undefined ? { role: "", name: node.name, depth: 0 } : node);

  const withInner = (element, role, all) => {
    const inner = WORDED.has(role) ? all.filter((node) => node.role !== "box").map(bare) : all;
    const state = stateOf(element, role);
    const isPlain = inner.every(isText);
    const name = nameOf(element, inner);
    if (isPlain && element instanceof SVGElement) return [leaf(element, role, name, { ...looksOf(element), ...state })];
    if (isPlain && name === "" && state.value === undefined && state.checked === undefined) {
      return [leaf(element, role, nickname(element), { ...looksOf(element), ...state })];
    }
    if (isPlain || state.value !== undefined) return [leaf(element, role, name, state)];
    const isWrapper = role === "clickable" && inner.length === 1 && inner[0].box === undefined;
    if (isWrapper && Object.keys(state).length === 0) return inner; // A click on what is inside is one on this.
    const kept = inner.map((node) => (isText(node) ? { ...node, role: "text" } : node));
    const place = element instanceof SVGElement ? { box: boxOf(element) } : {};
    return [leaf(element, role, name, { ...place, ...state }), ...deeper(kept)];
  };

  const page = window.envgym;
  page.notes = [];
  page.renumber = () => void ((numbers = new WeakMap()), (elements = []));
  page.element = (id) => {
    const element = elements[id - 1];
    return element && element.isConnected ? element : null;
  };
  page.view = () => {
    const nodes = inside(document.body).map((node) => (isText(node) ? { ...node, role: "text" } : node));
    return {
      nodes,
      selection: squeezed(String(getSelection())),
      notes: page.notes.splice(0),
    };
  };
})();
