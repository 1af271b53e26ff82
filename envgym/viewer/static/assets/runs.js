// The first page: all runs that were named, with what was asked for and cannot be shown.
import { f, facts, h, link, problems } from "./ui.js";

function card(run, index) {
  const progress = run.steps ? `${f.count(run.last_step ?? 0)} of ${f.count(run.steps)} train steps` : "";
  return h(
    "article",
    { class: "card run-card" },
    h("h2", {}, link(`run/${index}`, {}, EG.tokens.safe(run.name))),
    facts([["env", run.env_ids.join(", ")], ["model", run.model], ["recipe", run.recipe], ["progress", progress]]),
    facts([["episodes", f.count(run.num_episodes)], ["evaluations", f.count(run.num_evaluations)], ["directory", run.path]]),
    problems(run.problems),
  );
}

export async function show(context) {
  const list = h("div", { class: "run-cards" });
  const draw = () => EG.dom.replace(list, context.runs.map(card));
  draw();
  context.onPoll = draw;
  return [h("header", {}, h("p", { class: "overline" }, "envgym view"), h("h1", {}, context.runs.length === 1 ? "1 run" : `${context.runs.length} runs`)), problems(context.problems), list];
}
