// The card of an environment, with an episode to play.
import { get, post } from "./api.js";
import { errorBox, f, facts, field, h, link, replace, safe } from "./ui.js";

const KINDS = { env: "tool", you: "policy", oracle: "policy", system: "prompt" };

function said(who, text) {
  return h("div", { class: `segment ${KINDS[who] ?? "prompt"}` }, h("div", { class: "gutter" }, h("b", {}, who)), h("div", { class: "text" }, safe(text || "(nothing)")));
}

function player(id) {
  const talk = h("div", { class: "talk", role: "log", "aria-label": "Episode" });
  const text = h("textarea", { "aria-label": "Action", rows: 2, disabled: true });
  const seed = h("input", { type: "number", min: 0, value: "0", "aria-label": "Seed" });
  const split = h("select", { "aria-label": "Split" }, ["train", "test"].map((name) => h("option", { value: name }, name)));
  const how = h("p", { class: "hint" });
  const send = h("button", { type: "button", disabled: true, on: { click: () => act({ text: text.value }) } }, "Send");
  const oracle = h("button", { type: "button", disabled: true, on: { click: () => act({ is_oracle: true }) } }, "Let the oracle act");
  const begin = h("button", { type: "button", on: { click: start } }, "Begin an episode");
  const status = h("p", { class: "found", role: "status" });
  let session = "";
  let paid = 0;

  function allow(isOpen) {
    for (const item of [text, send, oracle]) item.disabled = !isOpen;
    if (isOpen) text.focus({ preventScroll: true });
  }

  async function start() {
    allow(false);
    status.textContent = "begins \u2026";
    paid = 0;
    try {
      const made = await post("play", { env_id: id, seed: Number(seed.value) || 0, split: split.value });
      session = made.session;
      replace(talk, made.system_prompt ? said("system", made.system_prompt) : null, said("env", made.observation));
      replace(how, safe(made.how), made.tools.length ? h("details", {}, h("summary", {}, f.plural(made.tools.length, "tool")), h("ul", { class: "tool-list" }, made.tools.map((tool) => h("li", {}, safe(tool))))) : null);
      status.textContent = `task ${safe(made.task_id)}`;
      begin.textContent = "Begin again";
      allow(true);
    } catch (error) {
      status.textContent = "";
      replace(talk, errorBox(error));
    }
  }

  async function act(data) {
    allow(false);
    try {
      const turn = await post(`play/${session}`, data);
      if (turn.refused) throw new Error(turn.refused);
      text.value = "";
      const { reward, components } = turn;
      paid += reward ?? 0;
      talk.append(said(data.is_oracle ? "oracle" : "you", turn.action));
      if (turn.observation || turn.ending === null) talk.append(said("env", turn.observation));
      if (reward) talk.append(h("p", { class: "hint" }, `reward ${f.number(reward)} `, EG.episode.components(components)));
      status.textContent = turn.ending ? "" : `reward so far ${f.number(paid)}`;
      if (turn.ending) talk.append(h("p", {}, EG.episode.badge(turn.ending), ` reward ${reward === null ? "invalid" : f.number(paid)}`, turn.error ? h("span", { class: "warn" }, ` ${safe(turn.error)}`) : null));
      allow(turn.ending === null);
    } catch (error) {
      talk.append(errorBox(error));
      allow(true);
    }
    talk.lastChild.scrollIntoView({ block: "nearest" });
  }

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      act({ text: text.value });
    }
  });
  return h(
    "section",
    {},
    h("h2", {}, "Play"),
    h("div", { class: "controls" }, field("Seed", seed), field("Split", split), begin, oracle),
    how,
    talk,
    status,
    h("div", { class: "talk-form" }, text, send),
  );
}

export async function show(context) {
  const { id } = context.query;
  const env = await post("env", { env_id: id });
  const sizes = Object.entries(env.splits).map(([name, size]) => `${name}: ${size === null ? "endless" : f.count(size)}`).join(", ");
  const parameters = Object.entries(env.parameters).map(([name, value]) => `${name}=${value}`).join(", ");
  const tools = Object.entries(env.tools);
  return [
    h("header", {}, h("p", { class: "overline" }, "environment"), h("h1", {}, safe(env.id)), h("p", { class: "note" }, safe(env.summary))),
    facts([
      ["tasks", sizes],
      ["turns", env.max_turns === null ? "no limit" : `at most ${f.count(env.max_turns)}`],
      ["reward", `${f.number(env.reward_range[0])} to ${f.number(env.reward_range[1])}`],
      ["optimum", env.optimum === null ? "" : f.number(env.optimum)],
      ["chance score", env.chance_score === null ? "" : f.number(env.chance_score)],
      ["fork", env.fork],
      ["arguments", parameters],
    ]),
    context.query.run ? h("p", { class: "links" }, link(`run/${context.query.run}`, {}, "\u2039 Run")) : null,
    player(id),
    tools.length ? h("section", {}, h("h2", {}, "Tools"), h("dl", { class: "node-facts" }, tools.map(([name, text]) => [h("dt", {}, name), h("dd", {}, safe(text))]))) : null,
    h("section", {}, h("h2", {}, "An episode of the oracle"), h("div", { class: "talk" }, env.example.map(([who, text]) => said(who, text)))),
    env.card ? h("section", {}, h("h2", {}, "Card"), h("div", { class: "card env-card" }, safe(env.card))) : null,
  ];
}
