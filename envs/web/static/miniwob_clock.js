// The page's time passes only when it is told to, so that an episode depends on its actions and not on the machine:
// dates, timers, intervals and animation frames. CSS transitions and animations end at once.
(() => {
  "use strict";
  const START = Date.UTC(2024, 0, 15, 12);
  const FRAME_MS = 16;
  const MAX_RUNS = 20000; // Of one advance: two intervals of 1 ms over 10 s.
  const RealDate = Date;
  const realFrame = window.requestAnimationFrame.bind(window);
  const timers = new Map();
  let now = START;
  let nextId = 1;

  const add = (callback, delay, isInterval, args) => {
    const wait = Math.max(1, Number(delay) || 0);
    timers.set(nextId, { at: now + wait, every: isInterval ? wait : 0, callback, args });
    return nextId++;
  };
  const drop = (id) => void timers.delete(id);

  const run = (timer) => {
    try {
      if (typeof timer.callback === "function") timer.callback(...timer.args);
      else (0, eval)(String(timer.callback));
    } catch (error) {
      // As in any browser, one failing timer does not stop the others.
    }
  };

  const earliest = () => {
    let first = null;
    for (const entry of timers) if (first === null || entry[1].at < first[1].at) first = entry;
    return first;
  };

  const advance = (ms) => {
    const end = now + ms;
    for (let runs = 0; runs < MAX_RUNS; runs++) {
      const first = earliest();
      if (first === null || first[1].at > end) break;
      const [id, timer] = first;
      now = timer.at;
      if (timer.every) timer.at += timer.every;
      else timers.delete(id);
      run(timer);
    }
    now = end;
  };

  window.Date = new Proxy(RealDate, {
    construct: (target, args, newTarget) => Reflect.construct(target, args.length ? args : [now], newTarget),
    apply: () => new RealDate(now).toString(),
    get: (target, key) => (key === "now" ? () => now : Reflect.get(target, key)),
  });
  RealDate.prototype.constructor = window.Date;
  performance.now = () => now - START;
  window.setTimeout = (callback, delay, ...args) => add(callback, delay, false, args);
  window.setInterval = (callback, delay, ...args) => add(callback, delay, true, args);
  window.requestAnimationFrame = (callback) => add(() => callback(now - START), FRAME_MS, false, []);
  window.requestIdleCallback = (callback) =>
    add(() => callback({ didTimeout: false, timeRemaining: () => FRAME_MS }), 1, false, []);
  for (const name of ["clearTimeout", "clearInterval", "cancelAnimationFrame", "cancelIdleCallback"]) window[name] = drop;

  // Numbers drawn while the page loads; MiniWoB seeds its own generator for each problem.
  let draw = 1;
  Math.random = () => (draw = (draw * 16807) % 2147483647) / 2147483647;

  document.addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "*, *::before, *::after { transition: none !important; animation: none !important; }";
    document.head.append(style);
  });

  const clock = {
    advance,
    rewind: () => void (now = START),
    count: () => timers.size,
    // Two real frames: what the browser itself does late (scroll events) has happened then.
    frames: () => new Promise((done) => realFrame(() => realFrame(done))),
  };
  Object.defineProperty(window, "envgym", { value: { clock } });
})();
