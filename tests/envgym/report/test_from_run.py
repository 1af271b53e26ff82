"""Tests of the report of a run directory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.core.segments import Origin
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Ending
from envgym.errors import RunError, UnknownName
from envgym.report import from_run
from envgym.report.from_run import evaluation_data, report_of_run, tree_of_run, write_run_report, write_run_tree
from envgym.report.trees import build_tree
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.runs.files import write_json
from tests.envgym.report.search_tree import outcome_advantages, search_tree
from tests.support import example_trees

CONFIG = {
    "run": {"seed": 5},
    "envs": [{"id": "math/arithmetic-v0"}],
    "model": {"name": "tiny"},
    "agent": {"name": "tool_calling"},
    "recipe": "grpo",
    "evaluation": {"tasks": 100, "samples": 1},
}


def evaluation(step: int, label: str, rewards: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    return {
        "env_id": "math/arithmetic-v0",
        "label": label,
        "step": step,
        "temperature": 0.0,
        "success_at": 1.0,
        "rewards": {task_id: list(values) for task_id, values in rewards.items()},
        "endings": {"TERMINATED": 3},
        "costs": {"turns": 2.0},
        "seconds": 1.5,
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", name="first", config=CONFIG)
    run.append_metrics({"step": 1, "train/success": 0.5, "loss/kl_old": float("nan"), "time/step_s": 2.0})
    run.append_metrics({"step": 2, "train/success": 0.75, "time/step_s": 3.0})
    run.write_eval(0, "during", evaluation(0, "during", {"a": [0.0]}))
    run.write_eval(2, "during", evaluation(2, "during", {"a": [1.0]}))
    run.write_eval(0, "held-out", evaluation(0, "held-out", {"a": [0.0], "b": [0.9], "c": [None]}))
    run.write_eval(2, "held-out", evaluation(2, "held-out", {"a": [1.0], "b": [0.0], "c": [1.1]}))
    return run


def test_a_run_gives_its_metrics_evaluations_and_comparisons(run: RunDirectory) -> None:
    report = report_of_run(run)
    assert [(row.step, row.values.get("train/success")) for row in report.metrics] == [(1, 0.5), (2, 0.75)]
    assert report.metrics[0].values["loss/kl_old"] is None
    assert [(item.step, item.label) for item in report.evaluations] == [
        (0, "during"),
        (0, "held-out"),
        (2, "during"),
        (2, "held-out"),
    ]
    # More tasks come first. a: 0 -> 1, b: 0 -> 0 (0.9 is no success), c is invalid before.
    headline = report.comparisons[0]
    assert (headline.label, headline.before_step, headline.after_step) == ("held-out", 0, 2)
    assert headline.paired.difference.value == 0.5
    assert headline.paired.num_left_out == 1
    assert [comparison.label for comparison in report.comparisons] == ["held-out", "during"]


def test_a_run_says_where_its_numbers_come_from(run: RunDirectory) -> None:
    meta = report_of_run(run).meta
    assert (meta.name, meta.env_ids, meta.model, meta.recipe) == ("first", ("math/arithmetic-v0",), "tiny", "grpo")
    assert (meta.agent, meta.seeds) == ("tool_calling", (5,))
    assert (meta.device, meta.duration_s) == ("", None)
    write_json(run.path / "wall_time.json", [{"device": "1 CPU core", "seconds": 30.0}] * 2)
    assert (report_of_run(run).meta.device, report_of_run(run).meta.duration_s) == ("1 CPU core", 60.0)
    assert "numpy" in meta.versions
    assert "recipe: grpo" in meta.settings
    assert meta.declared is not None
    assert meta.declared.num_tasks == 100


def test_equal_records_give_equal_intervals() -> None:
    data = evaluation(3, "held-out", {str(i): [float(i % 3 == 0)] for i in range(50)})
    assert evaluation_data(data) == evaluation_data(data)
    assert evaluation_data(data).greedy
    assert evaluation_data(data).endings == {Ending.TERMINATED: 3}


def test_saved_episodes_come_back_with_the_advantages_they_were_given(run: RunDirectory) -> None:
    tree = example_trees.fork_inside_a_turn()
    first = trajectories(tree)[0]
    rows = episode_rows([tree], step=1, advantages={(tree.id, first.leaf): (0.0, 0.5, (1.0, -1.0))})
    run.write_episodes(1, rows)
    run.write_episodes(2, episode_rows([example_trees.invalid_branch()], step=2), label="held-out")
    shown = report_of_run(run).episodes
    assert {(episode.source, episode.step) for episode in shown} == {("train", 1), ("held-out", 2)}
    trained, dropped = (episode for episode in shown if episode.source == "train")
    assert [segment.advantages for segment in trained.turns[0].segments] == [(0.5, 0.5), (1.0, -1.0)]
    assert all(all(segment.trained) for segment in trained.turns[0].segments)
    assert [segment.trained for segment in dropped.turns[0].segments] == [(), ()]


def test_evaluation_shows_all_its_episodes_and_training_says_how_many_it_has(run: RunDirectory) -> None:
    trees = [replace(example_trees.context_rewrite(), id=f"t{number}") for number in range(40)]
    run.write_episodes(1, episode_rows(trees, step=1))
    run.write_episodes(2, episode_rows(trees, step=2), label="held-out")
    report = report_of_run(run)
    shown = Counter(episode.source for episode in report.episodes)
    assert shown == {"train": from_run.MAX_EPISODES_PER_STEP, "held-out": 40}
    assert report.num_recorded == {"train": 40, "held-out": 40}


def test_beyond_the_budget_are_the_highest_rewards(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    paid, failed = example_trees.context_rewrite(), example_trees.invalid_branch()
    run.write_episodes(2, episode_rows([paid, failed], step=2), label="held-out")
    whole = report_of_run(run).episodes
    sizes = [sum(len(s.token_ids) for s in (*e.prompt, *(s for t in e.turns for s in t.segments))) for e in whole]
    rewards = [episode.reward for episode in whole]
    monkeypatch.setattr(from_run, "MAX_EPISODE_TOKENS", sum(sizes) - 1)
    left_out = Counter(rewards) - Counter(episode.reward for episode in report_of_run(run).episodes)
    assert left_out == {max(reward for reward in rewards if reward is not None): 1}
    assert None in rewards


def test_warm_start_is_shown_with_the_loss_of_every_update(run: RunDirectory) -> None:
    assert report_of_run(run).warm_start == ()
    run.write_warm_start([[2.0, 1.5], [0.5]])
    assert report_of_run(run).warm_start == ((2.0, 1.5), (0.5,))


def test_the_report_is_written_into_the_run(run: RunDirectory) -> None:
    path = write_run_report(run)
    assert path == run.path / "report.html"
    assert "first - envgym report" in path.read_text(encoding="utf-8")


def test_a_run_that_recorded_nothing_yet_still_has_a_report(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="new", config=CONFIG)
    report = report_of_run(run)
    assert (report.metrics, report.evaluations, report.comparisons, report.episodes) == ((), (), (), ())
    assert write_run_report(run).exists()


def test_an_evaluation_of_which_every_episode_failed_is_shown_and_not_compared(run: RunDirectory) -> None:
    run.write_eval(3, "held-out", evaluation(3, "held-out", {"a": [None], "b": [None], "c": [None]}))
    report = report_of_run(run)
    assert [comparison.label for comparison in report.comparisons] == ["during"]
    assert [item.step for item in report.evaluations if item.label == "held-out"] == [0, 2, 3]
    assert write_run_report(run).exists()


def save_search(run: RunDirectory, step: int, *, name: str, num_nodes: int = 40) -> Tree:
    tree = replace(search_tree(num_nodes), id=name)
    advantages = {(name, leaf): entries for leaf, entries in outcome_advantages(tree).items()}
    chain = example_trees.context_rewrite()
    run.write_episodes(step, episode_rows([chain, tree], step=step, advantages=advantages, dropped={name: "no spread"}))
    return tree


def test_report_shows_the_trees_that_branch(run: RunDirectory) -> None:
    tree = save_search(run, 1, name="searched")
    run.write_episodes(2, episode_rows([example_trees.invalid_branch()], step=2), label="held-out")
    shown = report_of_run(run).trees
    assert [item.id for item in shown] == ["train/1/searched", "held-out/2/invalid_branch"]
    assert shown[0] == build_tree(tree, step=1, advantages=outcome_advantages(tree), dropped="no spread")


def test_numbers_that_the_learner_computed_stand_beside_their_tokens(run: RunDirectory) -> None:
    tree = example_trees.fork_inside_a_turn()
    sampled = [sum(len(part) for part in node.edge.segments if part.trains) for node in tree.nodes]
    scores = {
        (tree.id, leaf): {
            "entropies": [[leaf + node + at / 10 for at in range(sampled[node])] for node in tree.path(leaf)]
        }
        for leaf in tree.leaves
    }
    run.write_episodes(1, episode_rows([tree], step=1, token_scores=scores))
    report = report_of_run(run)
    for episode, leaf in zip(report.episodes, tree.leaves, strict=True):
        segments = [segment for turn in episode.turns for segment in turn.segments]
        found = [value for segment in segments for value in segment.entropies]
        assert found == pytest.approx([value for of_node in scores[tree.id, leaf]["entropies"] for value in of_node])
        assert [len(part.entropies) for part in segments] == [
            len(part.token_ids) if part.origin is Origin.POLICY else 0 for part in segments
        ]
        assert all(part.ratios == part.learner_logprobs == () for part in segments)
    # in a tree, a token that several episodes share shows the numbers of the first
    first = tree.leaves[0]
    shown = [value for part in report.trees[0].nodes[1].content.segments for value in part.entropies]
    assert shown == pytest.approx(scores[tree.id, first]["entropies"][1])


def test_report_trees_are_few_small_and_first_of_every_step(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [replace(search_tree(12), id=f"t{number}") for number in range(3)]
    size = sum(edge.num_tokens for edge in (node.edge for node in trees[0].nodes))
    for step in (1, 2):
        run.write_episodes(step, episode_rows(trees, step=step))
    ids = ["train/1/t0", "train/1/t1", "train/2/t0", "train/2/t1"]
    assert [tree.id for tree in report_of_run(run).trees] == ids
    monkeypatch.setattr(from_run, "MAX_TREE_TOKENS", 3 * size)
    assert [tree.id for tree in report_of_run(run).trees] == ids[:3]
    monkeypatch.setattr(from_run, "MAX_TREE_TOKENS", 2 * size)
    assert [tree.id for tree in report_of_run(run).trees] == [ids[0], ids[2]]
    monkeypatch.setattr(from_run, "MAX_TREE_TOKENS", 0)
    assert [tree.id for tree in report_of_run(run).trees] == ids[:1]


def test_every_tree_of_a_run_can_be_seen_alone(run: RunDirectory) -> None:
    tree = save_search(run, 1, name="searched")
    alone = tree_of_run(run, "searched")
    assert (alone.trees, alone.episodes, alone.metrics) == (report_of_run(run).trees, (), ())
    assert tree_of_run(run, "train/1/searched").trees == alone.trees
    chain = tree_of_run(run, "context_rewrite").trees[0]
    assert [node.content.rewrite for node in chain.nodes] == [None, None, "TURNS_DROPPED"]
    path = write_run_tree(run, "searched")
    assert path == run.path / "trees" / "train_1_searched.html"
    assert f"{tree.id} - first - envgym tree" in path.read_text(encoding="utf-8")


def test_unknown_tree_is_told_with_near_names(run: RunDirectory) -> None:
    save_search(run, 1, name="step-000001/000/00")
    with pytest.raises(UnknownName, match=r"got 'step-000001/000/01' .*; did you mean train/1/step-000001/000/00\?"):
        tree_of_run(run, "step-000001/000/01")
    with pytest.raises(
        UnknownName, match="choose one of 2, such as train/1/context_rewrite or train/1/step-000001/000/00"
    ):
        tree_of_run(run, "zzz")


def test_tree_id_that_stands_at_two_steps_is_asked_for_with_its_step(run: RunDirectory) -> None:
    for step in (0, 2):
        run.write_episodes(step, episode_rows([example_trees.invalid_branch()], step=step), label="held-out")
    with pytest.raises(RunError, match=r"of which it has 2 .*: held-out/0/invalid_branch, held-out/2/invalid_branch"):
        tree_of_run(run, "invalid_branch")
    assert tree_of_run(run, "held-out/2/invalid_branch").trees[0].step == 2
