// Actions as events of the page itself, and the guards that keep the page where it is: dialogs, windows, downloads and
// other pages are answered with a note.
(() => {
  "use strict";
  const page = window.envgym;
  const STEPS = 12;
  let over = null;

  // ---- guards ------------------------------------------------------------------------------------------------

  const told = (text) => String(text === undefined ? "" : text).slice(0, 500);
  window.alert = (text) => void page.notes.push(`The page says: ${told(text)}`);
  window.confirm = (text) => {
    page.notes.push(`The page asks: ${told(text)} It was told no.`);
    return false;
  };
  window.prompt = (text) => {
    page.notes.push(`The page asks: ${told(text)} It was told nothing.`);
    return null;
  };
  window.print = () => void page.notes.push("The page asked to be printed; it was not.");
  window.open = (url) => {
    page.notes.push(`The page tried to open a window on ${told(url)}; it was not opened.`);
    return null;
  };
  const keepForm = () => void page.notes.push("The page tried to send a form; it was not sent.");
  HTMLFormElement.prototype.submit = keepForm;
  window.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    event.preventDefault();
    keepForm();
  });
  if (window.navigation) {
    navigation.addEventListener("navigate", (event) => {
      if (event.hashChange || !event.cancelable) return;
      event.preventDefault();
      const what = event.downloadRequest === null ? "go to" : "download";
      page.notes.push(`The page tried to ${what} ${told(event.destination.url)}; that is blocked.`);
    });
  }

  // ---- pointing ----------------------------------------------------------------------------------------------

  const clamp = (value, low, high) => Math.min(Math.max(value, low), Math.max(low, high));

  // Scroll an element into sight; return the point in the window that lies x, y from its corner, by default its middle,
  // or its first or last corner: half a pixel inside, before the first letter and behind the last, however narrow.
  const point = ({ id, x, y, part }) => {
    const element = page.element(id);
    element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    const lines = element.getClientRects();
    const isBroken = lines.length > 1 && x === null && part === "middle"; // A link over two lines: its first.
    const box = isBroken ? lines[0] : element.getBoundingClientRect();
    const within = (size) => ({ first: Math.min(size / 2, 0.5), last: Math.max(size / 2, size - 0.5) })[part] ?? size / 2;
    const left = box.left + (x === null ? within(box.width) : x);
    const top = box.top + (y === null ? within(box.height) : y);
    return { x: clamp(left, 0, innerWidth - 1), y: clamp(top, 0, innerHeight - 1) };
  };

  const fire = (target, type, at, extra = {}) => {
    const kind = type.startsWith("pointer") ? PointerEvent : MouseEvent;
    const isInner = type.endsWith("enter") || type.endsWith("leave");
    const which = { bubbles: !isInner, cancelable: !isInner, composed: true, view: window, detail: 1 };
    return target.dispatchEvent(new kind(type, { ...which, clientX: at.x, clientY: at.y, button: 0, ...extra }));
  };

  const chain = (element) => {
    const found = [];
    for (let node = element; node instanceof Element; node = node.parentElement) found.push(node);
    return found;
  };

  // What lies at the point: the wanted element itself where it is there, but covered by others.
  const hit = (at, wanted = null) => {
    const top = document.elementFromPoint(at.x, at.y) || document.body;
    if (wanted === null || wanted.contains(top)) return top;
    const box = wanted.getBoundingClientRect();
    const isThere = at.x >= box.left && at.x <= box.right && at.y >= box.top && at.y <= box.bottom;
    return isThere ? wanted : top;
  };

  const move = (target, at, buttons = 0) => {
    if (target !== over) {
      const before = chain(over !== null && over.isConnected ? over : null);
      const now = chain(target);
      if (before.length) fire(over, "mouseout", at, { relatedTarget: target });
      for (const node of before) if (!now.includes(node)) fire(node, "mouseleave", at);
      fire(target, "mouseover", at, { relatedTarget: over });
      for (const node of now.reverse()) if (!before.includes(node)) fire(node, "mouseenter", at);
      over = target;
    }
    fire(target, "pointermove", at, { buttons });
    fire(target, "mousemove", at, { buttons });
  };

  const focusable = (target) =>
    chain(target).find((node) => node.tabIndex >= 0 && !node.disabled) ||
    (target.closest("label") && target.closest("label").control) || null;

  const down = (target, at) => {
    fire(target, "pointerdown", at, { buttons: 1 });
    const isFree = fire(target, "mousedown", at, { buttons: 1 });
    if (!isFree) return false;
    const next = focusable(target);
    if (next !== null) next.focus();
    else if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
    if (target.closest("button, input, select") === null) getSelection().removeAllRanges();
    return true;
  };

  const up = (target, at) => {
    fire(target, "pointerup", at);
    fire(target, "mouseup", at);
  };

  const caret = (at) => {
    const found = document.caretRangeFromPoint(at.x, at.y);
    return found === null ? null : [found.startContainer, found.startOffset];
  };

  // ---- actions -----------------------------------------------------------------------------------------------

  const click = ({ from }) => {
    const element = page.element(from.id);
    if (element.disabled) return "That element is disabled.";
    const at = point(from);
    const target = hit(at, element);
    move(target, at);
    down(target, at);
    up(target, at);
    if (target.isConnected) fire(target, "click", at);
    return "";
  };

  const hover = ({ from }) => {
    const at = point(from);
    move(hit(at, page.element(from.id)), at);
    return "";
  };

  const drag = ({ from, to }) => {
    const start = point(from);
    const grabbed = hit(start, page.element(from.id));
    move(grabbed, start);
    const isFree = down(grabbed, start);
    const end = point(to);
    for (let step = 1; step <= STEPS; step++) {
      const part = step / STEPS;
      const at = { x: start.x + (end.x - start.x) * part, y: start.y + (end.y - start.y) * part };
      move(hit(at), at, 1);
    }
    if (isFree) mark(start, end);
    const target = hit(end);
    up(target, end);
    if (target === grabbed) fire(target, "click", end);
    return "";
  };

  const mark = (start, end) => {
    const [first, last] = [caret(start), caret(end)];
    if (first !== null && last !== null) getSelection().setBaseAndExtent(...first, ...last);
  };

  const TYPED = new Set(["INPUT", "TEXTAREA"]);
  const UNTYPED = new Set(["checkbox", "radio", "button", "submit", "reset", "image", "file"]);

  const fill = ({ from, text }) => {
    const element = page.element(from.id);
    if (element.disabled || element.readOnly) return "That field cannot be changed.";
    element.scrollIntoView({ block: "nearest" });
    if (element.isContentEditable) {
      element.focus();
      element.textContent = text;
      element.dispatchEvent(new InputEvent("input", { bubbles: true, data: text, inputType: "insertText" }));
      return "";
    }
    if (!TYPED.has(element.tagName) || UNTYPED.has(element.type)) return "That element is no text field.";
    element.focus();
    for (const type of ["keydown", "keypress"]) element.dispatchEvent(new KeyboardEvent(type, { bubbles: true }));
    const owner = element.tagName === "INPUT" ? HTMLInputElement : HTMLTextAreaElement;
    Object.getOwnPropertyDescriptor(owner.prototype, "value").set.call(element, text);
    element.dispatchEvent(new InputEvent("input", { bubbles: true, data: text, inputType: "insertText" }));
    element.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
    element.dispatchEvent(new Event("change", { bubbles: true }));
    return element.value === text ? "" : `The field took this as ${JSON.stringify(element.value)}.`;
  };

  const select = ({ from, options }) => {
    const element = page.element(from.id);
    if (element.tagName !== "SELECT") return "That element has no options.";
    if (element.disabled) return "That element is disabled.";
    if (options.length !== 1 && !element.multiple) return "That element takes exactly one option.";
    const same = (option, wanted) => option.text.replace(/\s+/g, " ").trim() === wanted || option.value === wanted;
    const missing = options.find((wanted) => ![...element.options].some((option) => same(option, wanted)));
    if (missing !== undefined) return `There is no option ${JSON.stringify(missing)}.`;
    element.focus();
    if (element.multiple) for (const o of element.options) o.selected = options.some((wanted) => same(o, wanted));
    else element.selectedIndex = [...element.options].findIndex((option) => same(option, options[0]));
    for (const type of ["input", "change"]) element.dispatchEvent(new Event(type, { bubbles: true }));
    return "";
  };

  const scroll = async ({ from, dy }) => {
    const around = from === null ? [] : chain(page.element(from.id));
    const box = around.find((node) => node.scrollHeight > node.clientHeight + 1) || document.scrollingElement;
    box.scrollTop += dy;
    await page.clock.frames();
    return "";
  };

  const focus = ({ from }) => {
    if (from !== null) page.element(from.id).focus();
    return "";
  };

  const back = async () => {
    if (navigation.currentEntry.index <= page.firstEntry) return "There is no earlier page.";
    await navigation.back().finished;
    return "";
  };

  page.act = async (name, action) => {
    for (const end of [action.from, action.to]) {
      if (end && page.element(end.id) === null) return "That element is gone.";
    }
    return await { click, hover, drag, fill, select, scroll, focus, back }[name](action);
  };
  page.point = point;
})();
