// What several pages show alike: links, facts, errors, tables with sorted columns, pagers.
import { queryText } from "./api.js";

const { h, replace } = EG.dom;
const f = EG.format;

export const safe = EG.tokens.safe;

// The address of a page: "#/run/0/episodes?text=..."
export const to = (path, query = {}) => `#/${path}${queryText(query)}`;

export function link(path, query, ...children) {
  return h("a", { href: to(path, query) }, ...children);
}

export const episodeQuery = ({ source, step, tree_id, leaf }) => ({ source, step, tree: tree_id, leaf });

export function errorBox(error) {
  return h("p", { class: "why", role: "alert" }, safe(error.message));
}

export function problems(list) {
  return list.map((text) => h("p", { class: "why", role: "note" }, safe(text)));
}

export function facts(entries) {
  const shown = entries.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h("dl", { class: "facts" }, shown.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, typeof value === "string" ? safe(value) : value))));
}

export function reward(value) {
  return value === null ? h("span", { class: "muted" }, "invalid") : f.number(value);
}

export function advantage(value) {
  if (value === null) return "";
  const text = f.fixed(value, 3);
  return h("span", { class: value > 0 ? "gain" : value < 0 ? "fall" : "muted" }, value > 0 ? `+${text}` : text);
}

// columns: [{key, name, title?, sort?, class?, cell(row)}]; `onSort(key)` where a head is chosen.
export function table(columns, rows, { sort = "", descending = false, onSort = null, href = null, label = "" } = {}) {
  const heads = columns.map(({ key, name, title, sort: sorts, class: kind }) => {
    const isSorted = sorts && sort === sorts;
    const text = isSorted ? `${name} ${descending ? "\u2193" : "\u2191"}` : name;
    const order = isSorted ? (descending ? "descending" : "ascending") : null;
    const inner = sorts ? h("button", { type: "button", class: "link", on: { click: () => onSort(sorts) } }, text) : text;
    return h("th", { scope: "col", class: `${key} ${kind ?? ""}`, title, "aria-sort": order }, inner);
  });
  const body = rows.map((row, index) => {
    const cells = columns.map(({ key, cell, class: kind }) => h("td", { class: `${key} ${kind ?? ""}` }, cell(row, index)));
    const made = h("tr", href ? { tabindex: index ? -1 : 0, data: { href: href(row, index) } } : {}, cells);
    return made;
  });
  const made = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body));
  if (href) followRows(made);
  return h("div", { class: "scroll card" }, made);
}

// A row is a link: by a click, or by the keys j, k, arrows and Enter.
function followRows(made) {
  made.classList.add("has-links");
  made.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button") && !String(getSelection())) location.hash = row.dataset.href.slice(1);
  });
  made.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr[data-href]");
    if (row && event.key === "Enter" && event.target === row) location.hash = row.dataset.href.slice(1);
  });
}

export function moveRow(step) {
  const rows = [...document.querySelectorAll("tr[data-href]")];
  if (!rows.length) return false;
  const at = rows.indexOf(document.activeElement);
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  rows.forEach((row) => (row.tabIndex = row === next ? 0 : -1));
  next.focus();
  return true;
}

export function pager(offset, limit, total, onMove) {
  const last = Math.min(offset + limit, total);
  const button = (text, label, target, isOff) => h("button", { type: "button", "aria-label": label, disabled: isOff, on: { click: () => onMove(target) } }, text);
  return h(
    "div",
    { class: "pager" },
    button("\u2039 Previous", "Previous page", Math.max(0, offset - limit), offset === 0),
    h("span", {}, total ? `${f.count(offset + 1)} to ${f.count(last)} of ${f.count(total)}` : "none"),
    button("Next \u203a", "Next page", offset + limit, last >= total),
  );
}

export function field(label, input) {
  return h("label", { class: "field" }, h("span", {}, label), input);
}

// A call of `act` when no further one has come for a moment.
export function debounced(act, wait = 140) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...args), wait);
  };
}

export { h, replace, f };
