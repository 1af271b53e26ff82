// One task at two steps, side by side: what the policy did before and does now.
import { get } from "./api.js";
import { asker, controls as episodeControls, draw as drawEpisode } from "./episode.js";
import { episodeQuery, errorBox, f, field, h, link, replace, reward, safe } from "./ui.js";

export async function show(context) {
  const { run, query } = context;
  const data = await get(`runs/${run}/task`, { source: query.source, task: query.task });
  const { steps } = data;
  if (!steps.length) throw new Error(`The task must have episodes of ${query.source}, got none of ${query.task}; choose one from the table of episodes.`);
  const panes = h("div", { class: "side-by-side" });
  panes.style.setProperty("--columns", "2");
  const points = steps.map(({ step, mean, episodes }) => ({ x: step, y: mean, n: episodes.length }));
  const sides = [
    { key: "a", at: indexOf(query.a, 0), sample: Number(query.i ?? 0) },
    { key: "b", at: indexOf(query.b, steps.length - 1), sample: Number(query.j ?? 0) },
  ];

  function indexOf(step, otherwise) {
    const at = steps.findIndex((item) => String(item.step) === step);
    return at < 0 ? otherwise : at;
  }

  async function side(chosen) {
    const { step, mean, episodes } = steps[chosen.at];
    chosen.sample = Math.min(chosen.sample, episodes.length - 1);
    const row = episodes[chosen.sample];
    const pane = h("div", { class: "episode-pane", role: "region", "aria-label": `Step ${step}` });
    const change = (values) => {
      Object.assign(chosen, values);
      context.setQuery({ source: query.source, task: query.task, a: steps[sides[0].at].step, i: sides[0].sample, b: steps[sides[1].at].step, j: sides[1].sample });
      draw();
    };
    const stepSelect = h("select", { "aria-label": `Step, side ${chosen.key}`, on: { change: (event) => change({ at: Number(event.target.value), sample: 0 }) } }, steps.map((item, i) => h("option", { value: String(i), selected: i === chosen.at }, `step ${f.count(item.step)}: mean ${item.mean === null ? "invalid" : f.number(item.mean)}, ${f.plural(item.episodes.length, "episode")}`)));
    const sampleSelect = h("select", { "aria-label": `Sample, side ${chosen.key}`, on: { change: (event) => change({ sample: Number(event.target.value) }) } }, episodes.map((item, i) => h("option", { value: String(i), selected: i === chosen.sample }, `${i}: ${item.reward === null ? "invalid" : f.number(item.reward)}`)));
    try {
      const name = episodeQuery(row);
      const episode = await get(`runs/${run}/episode`, name);
      EG.tokens.watch(pane);
      drawEpisode(pane, episode, asker(run, name));
    } catch (error) {
      replace(pane, errorBox(error));
    }
    const head = h("div", { class: "controls" }, field("At", stepSelect), field("Sample", sampleSelect), h("span", {}, "mean ", reward(mean)));
    return h("div", { class: "side-column" }, head, pane);
  }

  async function draw() {
    replace(panes, await Promise.all(sides.map(side)));
  }

  await draw();
  const first = steps[0].episodes[0];
  const chart = points.length > 1 ? EG.lines.lineChart({ title: "Mean reward of the task", series: [{ name: query.source, color: EG.palette.series(0), points }], store: EG.makeStore(), height: 150 }) : null;
  return [
    h("header", {}, h("p", { class: "overline" }, link(`run/${run}/episodes`, { task: query.task, source: query.source }, "task")), h("h1", {}, safe(query.task)), first.question ? h("p", { class: "note" }, safe(first.question)) : null),
    chart,
    episodeControls(draw),
    panes,
  ];
}
