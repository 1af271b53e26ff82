// The problems of MiniWoB: start one from a seed, in a page that is as it was when it was loaded, and see how it ended.
(() => {
  "use strict";
  const page = window.envgym;
  const CANARY = 1;
  const NO_LIMIT = 2 ** 30; // ms; the page's own time limit, which no episode reaches.
  const SETTLE = 2000;
  let loaded = null;

  // All that a problem shows, without what counts the problems so far.
  const shown = () => {
    const clone = document.body.cloneNode(true);
    for (const id of ["reward-display", "sync-task-cover", "click-canvas"]) clone.querySelector(`#${id}`)?.remove();
    for (const element of clone.querySelectorAll("[data-tampered]")) element.removeAttribute("data-tampered");
    const fields = [...document.querySelectorAll("input, textarea, select, option")];
    const values = fields.map((field) => [field.value, field.checked, field.selected]);
    const places = [...document.querySelectorAll("*")].map((e) => e.scrollTop).filter((top) => top !== 0);
    const html = clone.innerHTML.replace(/(ui-id-|dp)\d+/g, "$1");
    return JSON.stringify([html, document.body.className, values, places, page.clock.count()]);
  };

  const start = (seed) => {
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
    history.replaceState(null, "", location.pathname);
    page.clock.rewind();
    Math.seedrandom(seed);
    core.EPISODE_MAX_TIME = NO_LIMIT;
    core.startEpisodeReal();
  };

  // Whether a fixed problem shows what it showed at first. With the very first problem some pages build what stays: that
  // one is not looked at.
  const isAsLoaded = () => {
    if (loaded === null) start(CANARY);
    core.endEpisode(0);
    page.clock.advance(SETTLE);
    start(CANARY);
    const now = shown();
    if (loaded === null) loaded = now;
    return loaded === now;
  };

  // Start the problem of a seed; say whether the page was fit for it, and if not, do nothing.
  page.begin = (seed) => {
    if (!isAsLoaded()) return false;
    page.renumber();
    start(seed);
    page.notes.length = 0;
    page.firstEntry = navigation.currentEntry.index;
    return true;
  };

  const known = new Set();

  // Pictures decide how large an element is: wait for those that are new.
  const pictures = async () => {
    const waits = [...document.images].filter((image) => !image.complete).map((image) => image.decode());
    for (const element of document.body.querySelectorAll("*")) {
      const url = /^url\("(.*)"\)/.exec(getComputedStyle(element).content);
      if (url === null || known.has(url[1])) continue;
      known.add(url[1]);
      const image = new Image();
      image.src = url[1];
      waits.push(image.decode());
    }
    await Promise.allSettled(waits);
  };

  const task = () => {
    const said = core.getUtterance();
    return typeof said === "string" ? said : said.utterance;
  };

  // Act, where there is something to do, let time pass, and tell what the page shows now.
  page.turn = async (name, action, ms) => {
    const note = name === null ? "" : await page.act(name, action);
    page.clock.advance(ms);
    await pictures();
    if (note) page.notes.unshift(note);
    const end = { isOver: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL };
    return JSON.stringify({ ...page.view(), ...end, task: task() });
  };
})();
