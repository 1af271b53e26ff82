// Tokens of an episode: coloured by origin, advantage or surprise; underlined where trained; details on hover.
EG.tokens = (() => {
  const { h, replace } = EG.dom;
  const f = EG.format;
  const LARGEST_SURPRISE = 5;
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

  function surpriseColor(logprob) {
    const strength = Math.round(70 * Math.min(1, -logprob / LARGEST_SURPRISE));
    return strength > 0 ? `color-mix(in srgb, var(--surprise) ${strength}%, transparent)` : "";
  }

  function background(segment, i, coloring) {
    if (coloring === "advantage" && segment.advantages.length) return advantageColor(segment.advantages[i]);
    if (coloring === "surprise" && segment.logprobs.length) return surpriseColor(segment.logprobs[i]);
    return "";
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
    const { origin, token_ids, token_strings, logprobs, advantages, trained, policy_version } = token.segment;
    const rows = [
      ["token", safe(JSON.stringify(token_strings[i]))],
      ["id", String(token_ids[i])],
      ["position", f.count(position)],
      ["origin", origin.toLowerCase()],
      ["trained", trained[i] ? "yes" : "no"],
    ];
    if (logprobs.length) rows.push(["log-prob", `${f.fixed(logprobs[i], 4)}  (${f.percent(Math.exp(logprobs[i]))})`]);
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
    const extra = { origin: null, advantage: null, surprise: null };
    const { advantage_scale } = EG.data.report;
    const [least, largest] = [f.number(-advantage_scale), f.number(advantage_scale)];
    extra.advantage = advantage_scale ? ramp("advantage", `advantage ${least}`, `+${largest}`) : h("span", {}, "No shown token has an advantage other than 0.");
    extra.surprise = ramp("surprise", "certain", `surprising (${LARGEST_SURPRISE} nats and more)`);
    return h("div", { class: "token-legend" }, origins, trained, extra[coloring]);
  }

  return { segmentRow, legend, watch, safe, advantageColor };
})();
