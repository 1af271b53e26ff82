// Tokens of an episode: coloured by origin or by a number that they have; underlined where trained; details on hover.
EG.tokens = (() => {
  const { h, replace } = EG.dom;
  const f = EG.format;
  const LARGEST_SURPRISE = 5;
  const LARGEST_ENTROPY = 3;
  const LARGEST_GAP = 1;
  const MARK = "\u23ce";

  // Characters that would hide or reorder text are written out.
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
  const written = (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;

  const safe = (text) => text.replace(HIDDEN, written);
  const marked = (text) => safe(text).replace(/\n/g, `${MARK}\n`);

  function advantageColor(value) {
    const scale = EG.data.report.advantage_scale;
    if (!scale || value === 0) return "";
    const strength = Math.round(12 + 58 * Math.min(1, Math.abs(value) / scale));
    return `color-mix(in srgb, var(${value > 0 ? "--gain" : "--fall"}) ${strength}%, transparent)`;
  }

  // `share` from -1 to 1: of the largest value that has a shade of its own.
  function shaded(share, above, below = above) {
    const strength = Math.round(70 * Math.min(1, Math.abs(share)));
    return strength > 0 ? `color-mix(in srgb, var(${share > 0 ? above : below}) ${strength}%, transparent)` : "";
  }

  const hasGap = (segment) => segment.logprobs.length > 0 && segment.learner_logprobs.length > 0;
  const gap = (segment, i) => segment.learner_logprobs[i] - segment.logprobs[i];

  // What a token may be coloured by: its name in a list, and of a token that has it a colour.
  const COLORINGS = {
    origin: { name: "Origin", color: () => "" },
    advantage: { name: "Advantage", has: ({ advantages }) => advantages.length, color: ({ advantages }, i) => advantageColor(advantages[i]) },
    surprise: { name: "Log-prob", has: ({ logprobs }) => logprobs.length, color: ({ logprobs }, i) => shaded(-logprobs[i] / LARGEST_SURPRISE, "--surprise") },
    entropy: { name: "Entropy", has: ({ entropies }) => entropies.length, color: ({ entropies }, i) => shaded(entropies[i] / LARGEST_ENTROPY, "--surprise") },
    ratio: { name: "Ratio", has: ({ ratios }) => ratios.length, color: ({ ratios }, i) => shaded(Math.log2(ratios[i]), "--gain", "--fall") },
    gap: { name: "Log-prob gap", has: hasGap, color: (segment, i) => shaded(gap(segment, i) / LARGEST_GAP, "--gain", "--fall") },
  };
  const colorings = Object.entries(COLORINGS).map(([key, { name }]) => [key, name]);

  function background(segment, i, coloring) {
    const { has, color } = COLORINGS[coloring];
    return has?.(segment) ? color(segment, i) : "";
  }

  // `start` is the position of the segment's first token in the episode.
  function segmentRow(segment, start, coloring) {
    const name = segment.origin.toLowerCase();
    const tokens = segment.token_strings.map((text, i) => {
      const token = h("span", { class: segment.trained[i] ? "t trained" : "t" }, marked(text));
      token.segment = segment;
      token.place = [i, start + i];
      const color = background(segment, i, coloring);
      if (color) token.style.background = color;
      return token;
    });
    return h(
      "div",
      { class: `segment ${name}` },
      h("div", { class: "gutter" }, h("b", {}, name), h("small", {}, f.count(segment.token_ids.length))),
      h("div", { class: "text" }, tokens),
    );
  }

  function details(token) {
    const [i, position] = token.place;
    const { origin, token_ids, token_strings, logprobs, advantages, learner_logprobs, entropies, ratios, trained, policy_version } = token.segment;
    const rows = [
      ["token", safe(JSON.stringify(token_strings[i]))],
      ["id", String(token_ids[i])],
      ["position", f.count(position)],
      ["origin", origin.toLowerCase()],
      ["trained", trained[i] ? "yes" : "no"],
    ];
    if (logprobs.length) rows.push(["log-prob", `${f.fixed(logprobs[i], 4)}  (${f.percent(Math.exp(logprobs[i]))})`]);
    if (learner_logprobs.length) rows.push(["learner's log-prob", f.fixed(learner_logprobs[i], 4)]);
    if (hasGap(token.segment)) rows.push(["log-prob gap", f.fixed(gap(token.segment, i), 4)]);
    if (entropies.length) rows.push(["entropy", `${f.fixed(entropies[i], 4)} nats`]);
    if (ratios.length) rows.push(["ratio", f.fixed(ratios[i], 4)]);
    if (advantages.length) rows.push(["advantage", f.fixed(advantages[i], 4)]);
    if (policy_version !== null) rows.push(["policy version", f.count(policy_version)]);
    return h("dl", {}, rows.map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
  }

  // One floating box for the page; it follows the token under the pointer.
  const box = h("div", { class: "tooltip", role: "tooltip", hidden: true });
  document.body.append(box);

  function showDetails(token) {
    replace(box, details(token));
    box.hidden = false;
    const at = token.getClientRects()[0];
    const { offsetWidth: width, offsetHeight: height } = box;
    const left = Math.min(Math.max(8, at.left), document.documentElement.clientWidth - width - 8);
    const below = at.bottom + 8 + height < window.innerHeight;
    box.style.left = `${left}px`;
    box.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - height - 8)}px`;
  }

  function watch(container) {
    container.addEventListener("pointerover", (event) => {
      const token = event.target.closest(".t");
      if (token) showDetails(token);
      else box.hidden = true;
    });
    container.addEventListener("pointerleave", () => (box.hidden = true));
    document.addEventListener("scroll", () => (box.hidden = true), { passive: true, capture: true });
  }

  function ramp(color, low, high) {
    return h("span", { class: "ramp" }, low, h("i", { class: color }), high);
  }

  function legend(coloring) {
    const origins = ["prompt", "policy", "tool", "template", "injected", "demonstration"].map((name) =>
      h("span", { class: `segment ${name} key` }, h("i", {}), name),
    );
    const trained = h("span", { class: "key" }, h("span", { class: "t trained" }, "underlined"), " trained");
    const { advantage_scale } = EG.data.report;
    const [least, largest] = [f.number(-advantage_scale), f.number(advantage_scale)];
    const extra = {
      advantage: advantage_scale ? ramp("advantage", `advantage ${least}`, `+${largest}`) : h("span", {}, "No shown token has an advantage other than 0."),
      surprise: ramp("surprise", "certain", `surprising (${LARGEST_SURPRISE} nats and more)`),
      entropy: ramp("surprise", "entropy 0", `${LARGEST_ENTROPY} nats and more; of trained tokens`),
      ratio: ramp("advantage", "ratio 0.5 after the step's updates", "2; 1 in a single update"),
      gap: ramp("advantage", `learner's minus sampler's log-prob: -${LARGEST_GAP}`, `+${LARGEST_GAP}`),
    };
    return h("div", { class: "token-legend" }, origins, trained, extra[coloring] ?? null);
  }

  return { segmentRow, legend, watch, safe, advantageColor, colorings };
})();
