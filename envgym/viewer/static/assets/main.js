// The app: a page per address after the `#`, the bar above it, the keys, and what is polled while a run goes on.
import { get } from "./api.js";
import * as compare from "./compare.js";
import * as env from "./env.js";
import * as episode from "./episode.js";
import * as episodes from "./episodes.js";
import * as groups from "./groups.js";
import * as overview from "./overview.js";
import * as runs from "./runs.js";
import * as task from "./task.js";
import * as tree from "./tree.js";
import { errorBox, h, link, moveRow, replace, safe, to } from "./ui.js";

const POLL_MS = 2000;

// Pattern of the path -> page; a page's `show(context)` returns its elements, and may set `context.onPoll`.
const PAGES = [
  [/^$/, runs],
  [/^run\/(\d+)$/, overview],
  [/^run\/(\d+)\/episodes$/, episodes],
  [/^run\/(\d+)\/episode$/, episode],
  [/^run\/(\d+)\/groups$/, groups],
  [/^run\/(\d+)\/group$/, { show: groups.showOne }],
  [/^run\/(\d+)\/tree$/, tree],
  [/^run\/(\d+)\/task$/, task],
  [/^compare$/, compare],
  [/^env$/, env],
];

const state = { runs: [], problems: [], context: null };
const bar = h("nav", { "aria-label": "Pages" });
const main = h("main", { id: "main", tabindex: -1 });
const help = h("dialog", { class: "keys", "aria-label": "Keys" });

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { path, query: Object.fromEntries(new URLSearchParams(query)) };
}

function drawBar({ path }, run) {
  const item = (address, text, query) => {
    const made = link(address, query, text);
    if (address === path) made.setAttribute("aria-current", "page");
    return made;
  };
  const ofRun = state.runs[run]
    ? [
        h("span", { class: "nav-run" }, safe(state.runs[run].name)),
        item(`run/${run}`, "Curves"),
        item(`run/${run}/episodes`, "Episodes"),
        item(`run/${run}/groups`, "Groups"),
      ]
    : [];
  const several = state.runs.length > 1 ? item("compare", "Compare", { runs: state.runs.map((_, i) => i).slice(0, 4).join(",") }) : null;
  replace(bar, h("a", { href: "#/", class: "nav-name" }, "envgym"), ofRun, several, h("button", { type: "button", class: "help", "aria-label": "Keys", on: { click: () => help.showModal() } }, "?"));
}

async function show() {
  const { path, query } = parse();
  const [pattern, page] = PAGES.find(([pattern]) => pattern.test(path)) ?? [null, null];
  const run = pattern ? Number(pattern.exec(path)[1] ?? 0) : 0;
  if (state.context) state.context.abort.abort();
  const context = { run, query, runs: state.runs, problems: state.problems, abort: new AbortController(), onPoll: null, keys: {}, setQuery };
  state.context = context;
  document.body.dataset.ready = "false";
  drawBar({ path }, page === runs || path === "compare" ? -1 : run);
  try {
    if (!page) throw new Error(`The address must be one of the viewer, got ${path}; begin at the first page.`);
    if (/^run\//.test(path) && !state.runs[run]) throw new Error(`The run must be one of 0..${state.runs.length - 1}, got ${run}; begin at the first page.`);
    const made = await page.show(context);
    if (context !== state.context) return;
    replace(main, made);
  } catch (error) {
    if (error.name === "AbortError" || context !== state.context) return;
    replace(main, errorBox(error));
  }
  const head = main.querySelector("h1");
  document.body.dataset.shown = location.hash;
  document.title = `${head ? head.textContent : "error"} - envgym view`;
  document.body.dataset.ready = "true";
}

// Changes what is asked for without another page: the address keeps it, and so does a copied link.
function setQuery(query) {
  state.context.query = query;
  history.replaceState(null, "", to(parse().path, query));
}

async function poll() {
  try {
    if (document.visibilityState === "visible") await readRuns();
    bar.classList.remove("is-offline");
  } catch {
    bar.classList.add("is-offline");
  }
  setTimeout(poll, POLL_MS);
}

async function readRuns() {
  const found = await get("runs");
  const isChanged = JSON.stringify(found.runs) !== JSON.stringify(state.runs);
  [state.runs, state.problems] = [found.runs, found.problems];
  const { context } = state;
  if (isChanged && context) {
    context.runs = state.runs;
    if (context.onPoll) await context.onPoll();
  }
}

const KEYS = [
  ["j, k", "next or previous row; Enter opens it"],
  ["/", "search"],
  ["[, ]", "previous or next episode, or page"],
  ["arrows", "walk through a tree"],
  ["space", "replay a tree, or pause"],
  ["e, g, c, r", "episodes, groups, curves of the run; all runs"],
  ["?", "these keys"],
];

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || help.open) return;
  const { context } = state;
  const own = context.keys[event.key];
  const go = (path) => () => (location.hash = to(path).slice(1));
  const base = `run/${context.run}`;
  const shared = {
    j: () => moveRow(1),
    k: () => moveRow(-1),
    "?": () => help.showModal(),
    "/": () => main.querySelector("input[type=search]")?.focus(),
    e: go(`${base}/episodes`),
    g: go(`${base}/groups`),
    c: go(base),
    r: go(""),
  };
  const act = own ?? shared[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

async function start() {
  replace(help, h("h2", {}, "Keys"), h("dl", {}, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])), h("button", { type: "button", on: { click: () => help.close() } }, "Close"));
  document.getElementById("app").append(bar, main, help);
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => {
    scrollTo(0, 0);
    show();
  });
  try {
    await readRuns();
  } catch (error) {
    replace(main, errorBox(error));
    document.body.dataset.ready = "true";
  }
  if (state.runs.length === 1 && !location.hash) history.replaceState(null, "", "#/run/0");
  await show();
  setTimeout(poll, POLL_MS);
}

start();
