"""Metrics: what each of the table measures of episodes whose numbers are known, and how their intervals are kept."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from envgym.agents.evaluation.metrics.base import METRIC, build_metrics, compute_metrics, read_metrics
from envgym.agents.rollout.programs.endings import annotate_run
from envgym.config.plugins import Choice
from envgym.core.messages import Action, Observation, ToolCall
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.errors import InvalidInput
from envgym.stats import Estimate, estimate_success
from tests.support.example_trees import CALL, invalid_branch, outcome_tree, policy, start, turn


def episode(task: str, reward: float | None, *, answer: str = "done", calls: int = 0, errors: int = 0) -> Trajectory:
    """Build an episode of some turns with a call each, and a last one with an answer."""
    tree = start(f"{task}/{reward}/{answer}")
    node = tree.root
    for number in range(calls):
        outcome = replace(CALL, tool_errors=int(number < errors))
        node = tree.add(node, turn(policy(10 + number)), outcome=outcome)
    if reward is None:
        return trajectories(replace(outcome_tree("t", None), task_key=task))[0]
    last = TurnOutcome(action=Action(answer), observation=Observation(), reward=Scored(value=reward))
    tree.add(node, turn(policy(50)), outcome=last, ending=Ending.TERMINATED)
    return trajectories(replace(tree.freeze(), task_key=task))[0]


def measure(
    episodes: Sequence[Trajectory], *choices: str | dict[str, object], success_at: float = 1.0
) -> dict[str, float]:
    metrics = build_metrics([Choice.model_validate(choice) for choice in choices], success_at=success_at)
    numbers = compute_metrics(metrics, episodes)
    return {name: metric.value for name, metric in read_metrics(numbers).items()}


EPISODES = [
    episode("a", 1.0, answer="7", calls=2, errors=1),
    episode("a", 1.0, answer="7"),
    episode("a", 0.5, answer="8"),
    episode("a", 0.0, answer="9", calls=4),
    episode("b", 0.0, answer="1"),
    episode("b", 0.0, answer="1"),
    episode("b", 0.0, answer="2"),
    episode("b", 1.0, answer="3", calls=1),
    episode("b", None),
    episode("c", None),
]


def test_success_and_reward_are_means_over_tasks_of_valid_samples() -> None:
    # a: 2 of 4, b: 1 of 4; rewards 2.5/4 and 1/4; c has no valid sample
    assert measure(EPISODES, "success", "reward") == {"success": 0.375, "reward": 0.4375}


def test_threshold_is_that_of_the_evaluation_unless_the_metric_has_one() -> None:
    assert measure(EPISODES, "success", success_at=0.5)["success"] == 0.5
    assert measure(EPISODES, {"name": "success", "success_at": 1.0}, success_at=0.5)["success"] == 0.375


def test_components_are_means_over_tasks_and_absent_ones_are_0() -> None:
    def scored(task: str, **parts: float) -> Trajectory:
        tree = start(task)
        last = TurnOutcome(
            action=Action("done"), observation=Observation(), reward=Scored(value=sum(parts.values()), components=parts)
        )
        tree.add(tree.root, turn(policy(50)), outcome=last, ending=Ending.TERMINATED)
        return trajectories(replace(tree.freeze(), task_key=task))[0]

    # a: forms (1 + 0)/2, answers (0.5 + 0)/2; b: form 0.2, no answer; c is invalid
    episodes = [scored("a", form=1.0, answer=0.5), scored("a", form=0.0), scored("b", form=0.2), episode("c", None)]
    assert measure(episodes, "components") == pytest.approx({"component_form": 0.35, "component_answer": 0.125})
    assert measure([episode("c", None)], "components") == {}
    with pytest.raises(InvalidInput, match="component_risk_low must be one number, got two"):
        measure([scored("a", risk=1.0, risk_low=2.0)], "components")


def test_pass_rates_at_powers_of_two_up_to_the_samples() -> None:
    # pass@2: 1 - C(2,2)/6 = 5/6 and 1 - C(3,2)/6 = 1/2; pass^2: 1/6 and 0
    found = measure(EPISODES, "pass_at_k", "pass_hat_k")
    assert list(found) == ["pass@1", "pass@2", "pass@4", "pass^1", "pass^2", "pass^4"]
    assert [found[f"pass@{k}"] for k in (1, 2, 4)] == pytest.approx([0.375, (5 / 6 + 1 / 2) / 2, 1.0])
    assert [found[f"pass^{k}"] for k in (1, 2, 4)] == pytest.approx([0.375, 1 / 12, 0.0])
    assert list(measure(EPISODES, {"name": "pass_at_k", "k": [3, 9]})) == ["pass@3"]


def test_majority_of_all_four_samples() -> None:
    # a: 7 has two votes and is right; b: 1 has two and is wrong
    assert measure(EPISODES, {"name": "maj_at_k", "k": [4]}) == {"maj@4": 0.5}


def test_majority_reads_calls_as_answers() -> None:
    def called(value: int, reward: float) -> Trajectory:
        tree = start(f"{value}")
        action = Action("call", content="", tool_calls=[ToolCall(name="answer", arguments={"value": value})])
        last = TurnOutcome(action=action, observation=Observation(), reward=Scored(value=reward))
        tree.add(tree.root, turn(policy(1)), outcome=last, ending=Ending.TERMINATED)
        return trajectories(tree.freeze())[0]

    assert measure([called(1, 0.0), called(2, 1.0), called(2, 1.0)], {"name": "maj_at_k", "k": [3]}) == {"maj@3": 1.0}


def test_best_of_n_rewards() -> None:
    # a, n = 2: of 0 .5 1 1 the largest of a pair: .5 1 1 1 1 1 -> 5.5/6; b: 1 in 3 of 6 pairs
    found = measure(EPISODES, {"name": "best_of_n", "n": [2, 4]})
    assert found == pytest.approx({"best_of_2": (5.5 / 6 + 0.5) / 2, "best_of_4": 1.0})


def test_interquartile_mean_and_profile() -> None:
    # 0 0 0 0 .5 1 1 1 without two at each end: (0 + 0 + .5 + 1)/4
    assert measure(EPISODES, "iqm") == {"iqm": 0.375}
    # above 0: 3/4 and 1/4; above 0.5: 2/4 and 1/4
    found = measure(EPISODES, {"name": "performance_profile", "above": [0.0, 0.5]})
    assert found == {"above_0": 0.5, "above_0.5": 0.375}


def test_profile_is_the_score_distribution_of_rliable() -> None:
    # ((7n + 3m + nm) mod 11 / 10)^2 of run n and task m; rliable 1.2.0, score_distributions at these thresholds
    scores = {m: [((7 * n + 3 * m + n * m) % 11 / 10) ** 2 for n in range(5)] for m in range(8)}
    episodes = [episode(f"t{m}", score) for m, own in scores.items() for score in own]
    found = measure(episodes, {"name": "performance_profile", "above": [0.0, 0.25, 0.5, 0.75, 0.95]})
    assert list(found.values()) == pytest.approx([0.875, 0.425, 0.225, 0.125, 0.05])


def test_success_within_turns_counts_valid_episodes_and_stops_at_the_longest() -> None:
    # a: one solved in 1 turn, one in 3 (two calls before); b: one in 2. The longest has 5 turns.
    found = measure(EPISODES, "success_within_turns")
    assert found == {
        "success_within_1": 0.125,
        "success_within_2": 0.25,
        "success_within_4": 0.375,
        "success_within_8": 0.375,
    }


def test_tool_efficiency_is_that_of_successes_by_task() -> None:
    # a: 2 and 0 calls, 1 and 0 errors; b: 1 call
    found = measure(EPISODES, "tool_efficiency")
    assert found == {"tool_calls_per_success": 1.0, "tool_errors_per_success": 0.25}
    assert measure(EPISODES[4:7], "tool_efficiency") == {}


def test_cost_of_a_tree_is_shared_by_its_episodes_and_invalid_ones_cost_too() -> None:
    found = measure(trajectories(invalid_branch()), "cost")  # 1 + 1 + 2 tokens, two turns
    assert found["tokens_generated_per_episode"] == pytest.approx(4 / 3)
    assert found["env_steps_per_episode"] == pytest.approx(2 / 3)


def program_episode(*, is_crash: bool = False, num_ignored_options: int = 0) -> Trajectory:
    tree = episode("a", 1.0, calls=1).tree
    return trajectories(annotate_run(tree, is_crash=is_crash, num_ignored_options=num_ignored_options))[0]


def test_programs_are_measured_over_the_episodes_that_a_program_played() -> None:
    unread = replace(CALL, action=Action("<call", malformed=("not JSON", "no name")))
    tree, silent = start("unread"), start("silent")
    tree.add(tree.root, turn(policy(10)), outcome=unread, ending=Ending.TERMINATED)
    silent.end(silent.root, Ending.ERROR_ENV, error="no call")
    malformed, crashed = (
        trajectories(annotate_run(item.freeze(), is_crash=item is silent, num_ignored_options=0))[0]
        for item in (tree, silent)
    )
    played = [program_episode(num_ignored_options=3), malformed, crashed]
    assert measure([*EPISODES, *played], "programs") == {
        "program/crashes": 1 / 3,
        "program/ignored_options": 1.0,
        "program/malformed_calls": 2 / 3,
        "program/rows_per_turn": 2 / 3,  # a row of two turns, and one of one
    }
    assert measure([crashed], "programs") == {
        "program/crashes": 1.0,
        "program/ignored_options": 0.0,
        "program/malformed_calls": 0.0,
    }


@pytest.mark.parametrize("name", METRIC.table)
def test_nothing_is_measured_of_no_episode_and_of_invalid_ones_no_score(name: str) -> None:
    assert measure([], name) == {}
    found = measure([episode("a", None)], name)
    assert not found or name in ("cost", "endings", "lengths")


def test_estimates_are_kept_with_their_intervals_and_two_of_a_name_are_refused() -> None:
    expected = estimate_success({"a": [True, True, False, False], "b": [False, False, False, True]})

    def share(episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        return {"success": expected}

    numbers = compute_metrics([share], EPISODES)
    ends = (expected.interval.low, expected.interval.high)
    assert numbers == {"metric/success": 0.375, "metric/success_low": ends[0], "metric/success_high": ends[1]}
    assert read_metrics(numbers)["success"] == (0.375, *ends)
    assert compute_metrics(build_metrics([Choice(name="success")], success_at=1.0), EPISODES) == numbers
    with pytest.raises(InvalidInput, match="success must be one number, got two"):
        compute_metrics([share, share], EPISODES)
