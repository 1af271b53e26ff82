"""Tests of the builders."""

import numpy as np
import pytest

from envgym import Action, Ending, Observation, Split, Task, ToolCall
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import trajectories
from envgym.core.tree import Edge
from envgym.core.turns import TurnOutcome
from envgym.errors import InvalidInput
from envgym.report.build import (
    Successes,
    build_comparison,
    build_episode,
    build_evaluation,
    build_metric_row,
    turn_data,
)
from envgym.report.data import TRAIN, ComparisonData, SegmentData, TaskCounts
from tests.support import example_trees


def flat(segments: tuple[SegmentData, ...]) -> list[tuple[Origin, tuple[int, ...], tuple[float, ...]]]:
    return [(segment.origin, segment.token_ids, segment.advantages) for segment in segments]


def test_a_fork_inside_a_turn_gives_one_turn_with_the_advantages_of_its_nodes() -> None:
    first, second = trajectories(example_trees.fork_inside_a_turn())
    # Path: root, the two shared tokens (no turn end), the rest.
    episode = build_episode(first, step=4, trained=True, advantages=(0.0, 0.25, (1.0, -1.0)))
    assert [(s.origin, s.token_ids) for s in episode.prompt] == [(Origin.PROMPT, (1, 2, 3)), (Origin.TEMPLATE, (4,))]
    (turn,) = episode.turns
    assert flat(turn.segments) == [
        (Origin.POLICY, (10, 11), (0.25, 0.25)),
        (Origin.POLICY, (12, 13), (1.0, -1.0)),
    ]
    assert [s.trained for s in turn.segments] == [(True, True), (True, True)]
    assert [s.logprobs for s in turn.segments] == [(-0.1, -0.11), (-0.12, -0.13)]
    assert (turn.action, turn.reward, turn.components) == ("done", 1.0, {"answer": 1.0})
    assert (episode.reward, episode.components, episode.ending) == (1.0, {"answer": 1.0}, Ending.TERMINATED)
    assert (episode.source, episode.step, episode.task_id, episode.env_id) == (
        TRAIN,
        4,
        "train/7",
        "math/arithmetic-v0",
    )
    other = build_episode(second, step=4)
    assert [s.token_ids for s in other.turns[0].segments] == [(10, 11), (20, 21)]
    assert other.id != episode.id


def test_only_sampled_tokens_train_and_have_advantages() -> None:
    for make in example_trees.HARD_CASES:
        for trajectory in trajectories(make()):
            episode = build_episode(trajectory, step=0, trained=True, advantages=[1.5] * len(trajectory.path))
            for segment in [*episode.prompt, *(s for turn in episode.turns for s in turn.segments)]:
                size = len(segment.token_ids) if segment.origin is Origin.POLICY else 0
                assert segment.trained == (True,) * size
                assert segment.advantages == (1.5,) * size
                assert len(segment.logprobs) == size
                assert (segment.policy_version is not None) == (size > 0)


def test_an_evaluated_episode_trains_nothing() -> None:
    (trajectory, _) = trajectories(example_trees.fork_inside_a_turn())
    episode = build_episode(trajectory, step=0, source="greedy")
    assert all(segment.trained == () and segment.advantages == () for segment in episode.turns[0].segments)


def test_an_invalid_episode_has_no_reward_but_a_cause() -> None:
    found = [
        build_episode(trajectory, step=0)
        for make in example_trees.HARD_CASES
        for trajectory in trajectories(make())
        if not trajectory.is_valid
    ]
    assert found
    for episode in found:
        assert episode.reward is None
        assert episode.components == {}
        assert episode.error != ""


def test_advantages_of_another_path_are_refused() -> None:
    (trajectory, _) = trajectories(example_trees.fork_inside_a_turn())
    with pytest.raises(InvalidInput, match="advantages must match the 3 nodes of the path, got 2"):
        build_episode(trajectory, step=0, advantages=(0.0, 1.0))
    with pytest.raises(InvalidInput, match="advantages must be empty or match the 2 ids, got 1"):
        build_episode(trajectory, step=0, advantages=(0.0, 1.0, (1.0,)))


def test_evaluation_counts_invalid_samples_apart() -> None:
    evaluation = build_evaluation(
        step=3,
        label="sampled",
        greedy=False,
        successes={"a": [True, False, None], "b": [True, True, True], "c": [None, None, None]},
        endings={Ending.TERMINATED: 5, Ending.ERROR_ENV: 4},
    )
    # valid: (1/2 + 1)/2; as failure (1/3 + 1 + 0)/3; as success (2/3 + 1 + 1)/3
    assert evaluation.success.valid is not None
    assert evaluation.success.valid.value == 0.75
    assert evaluation.success.as_failure.value == pytest.approx(4 / 9, abs=1e-12)
    assert evaluation.success.as_success.value == pytest.approx(8 / 9, abs=1e-12)
    assert evaluation.tasks == {
        "a": TaskCounts(successes=1, valid=2, samples=3),
        "b": TaskCounts(successes=3, valid=3, samples=3),
        "c": TaskCounts(successes=0, valid=0, samples=3),
    }
    # k = 1 over a and b; k = 2 too: pass@2 (1 + 1)/2, pass^2 (0 + 1)/2
    assert [(r.k, r.at_k.value, r.hat_k.value, r.at_k.num_tasks) for r in evaluation.pass_rates] == [
        (1, 0.75, 0.75, 2),
        (2, 1.0, 0.5, 2),
    ]


def test_pass_at_k_leaves_out_tasks_with_too_few_valid_samples() -> None:
    successes: Successes = {"a": [True, None, None, None], "b": [True, False, False, False]}
    evaluation = build_evaluation(step=0, label="s", greedy=False, successes=successes)
    assert [(r.k, r.at_k.num_tasks) for r in evaluation.pass_rates] == [(1, 2), (2, 1), (4, 1)]
    # b alone: 1 - C(3,2)/C(4,2) = 1/2
    assert evaluation.pass_rates[1].at_k.value == 0.5


def test_one_sample_a_task_has_no_pass_rates_and_none_valid_no_estimate() -> None:
    single = build_evaluation(step=0, label="greedy", greedy=True, successes={"a": [True]})
    assert single.pass_rates == ()
    broken = build_evaluation(step=0, label="greedy", greedy=True, successes={"a": [None, None]})
    assert broken.success.valid is None
    assert broken.pass_rates == ()
    assert broken.tasks == {"a": TaskCounts(successes=0, valid=0, samples=2)}


def compare(before: Successes, after: Successes) -> ComparisonData:
    rng = np.random.default_rng(0)
    return build_comparison(label="greedy", before_step=0, before=before, after_step=9, after=after, rng=rng)


def test_comparison_pairs_the_tasks_that_are_valid_on_both_sides() -> None:
    before: Successes = {"a": [False], "b": [False], "c": [None]}
    comparison = compare(before, {"a": [True], "b": [False], "c": [True]})
    assert comparison.paired.difference.value == 0.5
    assert (comparison.paired.wins, comparison.paired.ties, comparison.paired.num_left_out) == (1, 1, 1)
    assert (comparison.before.value, comparison.after.value) == (0.0, 0.5)
    assert comparison.after.num_tasks == 2


def test_comparison_of_other_tasks_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the task ids of both runs must be the same"):
        compare({"a": [True]}, {"a": [True], "b": [True]})


def test_metrics_that_are_not_finite_become_none() -> None:
    assert build_metric_row(2, {"a": 1.0, "b": float("inf")}).values == {"a": 1.0, "b": None}


def prompted(*parts: tuple[Origin, str]) -> str:
    segments = [
        Segment(origin=origin, token_ids=(number,), token_strings=(text,))
        for number, (origin, text) in enumerate(parts)
    ]
    task = Task(id="t", prompt="", payload={}, split=Split.TEST)
    tree = TreeBuilder(id="held-out/t/3", env_id="math/x-v0", task=task, seed=1, prompt=segments)
    tree.add(
        tree.root,
        Edge(segments=(), ends_turn=True),
        outcome=TurnOutcome(action=Action(), observation=Observation()),
        ending=Ending.TERMINATED,
    )
    return build_episode(trajectories(tree.freeze())[0], step=0, source="held-out").question


@pytest.mark.parametrize(
    "prompt",
    [
        "<|im_start|>system\nAnswer.<|im_end|>\n<|im_start|>user\nCompute\n 6 * 34.<|im_end|>\n<|im_start|>assistant\n",
        "<bos><start_of_turn>user\nCompute 6 * 34.<end_of_turn>\n<start_of_turn>model\n",
        "[INST] Compute 6 * 34. [/INST]",
        "Compute 6 * 34.",
    ],
)
def test_question_is_the_last_message_without_its_template(prompt: str) -> None:
    assert prompted((Origin.PROMPT, prompt)) == "Compute 6 * 34."


def test_question_of_several_segments_is_of_the_last_and_is_short() -> None:
    system = (Origin.PROMPT, "You solve problems.")
    assert (
        prompted(system, (Origin.TEMPLATE, "\nuser: "), (Origin.PROMPT, "x" * 500), (Origin.TEMPLATE, "!")) == "x" * 160
    )
    assert prompted() == ""


@pytest.mark.parametrize(
    "action, summary",
    [
        (Action("<call>", tool_calls=[ToolCall(name="guess", arguments={"number": 720})]), "guess(720)"),
        (
            Action("", tool_calls=[ToolCall(name="f", arguments={"a": "x y", "b": [1]}), ToolCall(name="stop")]),
            "f(a=x y, b=[1]); stop()",
        ),
        (Action("I  think\n<|im_end|>", content="I  think\n"), "I think"),
        (Action("a" * 300 + " so 12"), "\u2026" + "a" * 154 + " so 12"),
    ],
)
def test_summary_of_a_turn_is_its_calls_or_the_end_of_what_it_says(action: Action, summary: str) -> None:
    assert turn_data((), TurnOutcome(action=action, observation=Observation())).summary == summary
