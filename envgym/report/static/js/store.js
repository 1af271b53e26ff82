// What charts share: the zoomed range of steps, the step under the pointer, the smoothing.
EG.makeStore = () => {
  const state = { range: null, step: null, smoothing: 0 };
  const listeners = { range: [], step: [], smoothing: [] };

  return {
    get: (key) => state[key],
    set(key, value) {
      if (state[key] === value) return;
      state[key] = value;
      listeners[key].forEach((listener) => listener(value));
    },
    on: (key, listener) => listeners[key].push(listener),
  };
};

// Of all charts over train steps.
EG.store = EG.makeStore();
