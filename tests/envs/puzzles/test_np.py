"""`puzzles/np-v0`: answers are paid by how far they come from the baseline to the optimum; bad input is refused."""

import io
import pickle
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.cli.main import main
from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending, Scored, total
from envgym.envs.puzzles._np.problem import Instance, quality_of
from envgym.envs.puzzles._np.problems import MAX_ATTEMPTS, PROBLEMS, SIZES
from envgym.envs.puzzles.np import CHANCE, HardProblems
from tests.envs.episodes import conformance, play_actions, rewards_of

# Capacity 10. The best is items 2 and 3: 5 + 5 = 10 heavy, 20 worth. The average item is worth 30 / 16 per weight, so
# what is worth nothing is 10 * 30 / 16 = 18.75.
SACK: Instance = ((10,), (6, 10), (5, 10), (5, 10))


TestHardProblems = conformance("puzzles/np-v0", num_tasks=10)
TestHardProblemsThatAreEasy = conformance(
    "puzzles/np-v0", num_tasks=4, kinds=("max_cut", "makespan"), size="easy", attempts=1
)


def task_of(kind: str, rows: Instance) -> Task:
    problem = PROBLEMS[kind]
    instance: JsonValue = [list(row) for row in rows]
    payload: JsonObject = {"kind": kind, "instance": instance, "optimum": problem.optimum(rows)}
    return Task(id="t", prompt=problem.show(rows), payload=payload, split=Split.TRAIN)


def say(env: HardProblems, kind: str, rows: Instance, *answers: str) -> ObservedEpisode:
    return play_actions(env, task_of(kind, rows), *answers)


def parts(episode: ObservedEpisode) -> dict[str, float]:
    reward = total(turn.reward for turn in episode.turns)
    assert isinstance(reward, Scored)
    return dict(reward.components)


def test_hand_played_episode_pays_what_is_better_than_before() -> None:
    # 1: 10 is below 18.75, worth 0. 1 2: 11 heavy. 2 3: 20, the optimum.
    episode = say(HardProblems(attempts=4), "knapsack", SACK, "1", "<answer>[1, 2]</answer>", "3", "2, 3")
    assert [str(turn.observation) for turn in episode.turns] == [
        "Value 10. Best 10. Attempts left: 3.",
        "Not feasible: The total weight is 11, more than 10. Best 10. Attempts left: 2.",
        "Value 10. Best 10. Attempts left: 1.",
        "Value 20. It is optimal.",
    ]
    assert rewards_of(episode) == [0.0, 0.0, 0.0, 1.0]
    assert parts(episode) == {"feasible": 1.0, "optimal": 1.0, "ratio": 1.0}
    assert episode.ending is Ending.TERMINATED


def test_a_turn_pays_only_what_is_better_than_before() -> None:
    # The average item is worth 33 / 20 per weight: 16.5 is worth nothing, 18 is worth 1.5 / 3.5, 20 the rest.
    rows: Instance = ((10,), (5, 10), (5, 10), (5, 8), (5, 5))
    episode = say(HardProblems(), "knapsack", rows, "1 3", "1 2")
    rewards = [turn.reward for turn in episode.turns if isinstance(turn.reward, Scored)]
    assert [reward.value for reward in rewards] == pytest.approx([3 / 7, 4 / 7])
    assert rewards[0].components == {"feasible": 1.0, "optimal": 0.0, "ratio": 0.9}
    assert rewards[1].components == pytest.approx({"feasible": 0.0, "optimal": 1.0, "ratio": 0.1})


def test_last_answer_ends_the_episode_with_the_best_quality() -> None:
    # Four vertices in a square need two colors; the largest degree is 2, so three colors are worth nothing.
    square: Instance = ((4,), (1, 2), (2, 3), (3, 4), (1, 4))
    episode = say(HardProblems(attempts=2), "coloring", square, "1 2 3 2", "1 1 2 2")
    assert str(episode.turns[0].observation) == "Value 3. Best 3. Attempts left: 1."
    assert str(episode.turns[1].observation) == (
        "Not feasible: The edge 1-2 has the same color at both ends. The optimum is 2."
    )
    assert episode.reward == 0.0
    assert parts(episode) == {"feasible": 1.0, "optimal": 0.0, "ratio": pytest.approx(2 / 3)}
    assert episode.ending is Ending.TERMINATED


def test_partial_quality_by_hand() -> None:
    assert quality_of(15, 20, 10.0) == 0.5  # a maximum: half of the way
    assert quality_of(4, 3, 7.0) == 0.75  # a minimum
    assert quality_of(9, 20, 10.0) == 0.0
    assert quality_of(8, 3, 7.0) == 0.0


@pytest.mark.parametrize("text", ["", "none", "0", "4", "1 1", "-1 2", "1 2 3 4", "1;2", "1.5", "1 2 ...", "9" * 5000])
def test_what_is_no_answer_costs_no_attempt_and_pays_nothing(text: str) -> None:
    episode = say(HardProblems(), "knapsack", SACK, text, "1")
    assert str(episode.turns[0].observation) == (
        "Answer with the numbers of the chosen items, each at most once, from 1 to 3, such as 1 3 4."
    )
    assert str(episode.turns[1].observation).endswith("Attempts left: 2.")
    assert parts(episode) == {"feasible": 1.0, "optimal": 0.0, "ratio": 0.5}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_oracle_reaches_the_optimum_of_every_kind_and_size(kind: str, size: str) -> None:
    env = HardProblems(kinds=kind, size=size)
    for split in Split:
        for index in range(3):
            episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(split, index))
            assert (episode.reward, len(episode.turns)) == (1.0, 1)
            assert parts(episode) == {"feasible": 1.0, "optimal": 1.0, "ratio": 1.0}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PROBLEMS)), st.integers(0, 30), st.data())
def test_turns_add_up_to_the_quality_and_ratio_of_the_best_answer(kind: str, index: int, data: st.DataObject) -> None:
    env = HardProblems(kinds=kind, size="easy", attempts=5)
    env.reset(options={"split": "train", "index": index})
    given_, problem = env.state.instance, PROBLEMS[kind]
    num = problem.num_things(given_.rows)
    values, paid, reached = [], 0.0, dict.fromkeys(("feasible", "optimal", "ratio"), 0.0)
    for _ in range(5):
        answer = tuple(data.draw(st.lists(st.integers(1, num), min_size=num, max_size=num)))
        answer = tuple(dict.fromkeys(answer)) if problem.form == "subset" else answer
        if problem.form == "literals":
            answer = tuple(number if odd % 2 else -number for number, odd in enumerate(answer, start=1))
        if problem.form == "groups":
            answer = tuple(group % problem.num_groups(given_.rows) + 1 for group in answer)
        value = problem.evaluate(given_.rows, answer)
        values += [value] if isinstance(value, int) else []
        result = env.step(" ".join(map(str, answer)))
        assert result.reward >= 0
        paid += result.reward
        for name, part in result.info["envgym"].reward.components.items():
            reached[name] += part
        assert result.terminated == (env.state.left == 0 or given_.optimum in values)
        if result.terminated:
            break
    best = None if not values else max(values) if problem.is_maximum else min(values)
    assert paid == pytest.approx(0.0 if best is None else quality_of(best, given_.optimum, given_.baseline))
    assert reached["ratio"] == pytest.approx(0.0 if best is None else problem.ratio(best, given_.optimum))
    assert (reached["feasible"], reached["optimal"]) == (float(best is not None), float(best == given_.optimum))


@settings(max_examples=200)
@given(st.integers(1, 100), st.floats(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_a_better_value_never_pays_less(optimum: int, baseline: float, one: int, other: int) -> None:
    if abs(optimum - baseline) < 1e-3:
        return
    direction = 1 if optimum > baseline else -1
    worse, better = sorted((min(direction * one, direction * optimum), min(direction * other, direction * optimum)))
    low, high = (quality_of(direction * value, optimum, baseline) for value in (worse, better))
    assert 0.0 <= low <= high <= 1.0


def test_forks_share_the_instance_and_go_their_own_ways() -> None:
    env = HardProblems()
    env.reset(options={"task": task_of("knapsack", SACK)})
    twin = env.fork()
    assert twin.state.instance is env.state.instance
    assert twin.step("2 3").reward == 1.0
    assert str(env.step("1").observation) == "Value 10. Best 10. Attempts left: 2."
    copied = pickle.loads(pickle.dumps(env))
    assert str(copied.step("3").observation) == str(env.step("3").observation) == "Value 10. Best 10. Attempts left: 1."


def test_kinds_are_those_asked_for_and_each_declares_its_chance() -> None:
    env = HardProblems(kinds=("clique", "max_sat"), size="hard", attempts=2)
    drawn = {str(env.tasks.task(Split.TRAIN, index).payload["kind"]) for index in range(20)}
    assert drawn == {"clique", "max_sat"}
    assert env.chance_score == pytest.approx((CHANCE["clique"]["hard"][1] + CHANCE["max_sat"]["hard"][1]) / 2)
    assert {kind: set(sizes) for kind, sizes in CHANCE.items()} == {kind: set(SIZES) for kind in PROBLEMS}
    for sizes in CHANCE.values():
        for row in sizes.values():
            assert len(row) == MAX_ATTEMPTS
            assert list(row) == sorted(row)


def test_play_shows_the_components_of_all_turns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("1 2 3\n1 2 3 4\n"))
    assert main(["play", "puzzles/np-v0", "--set", "kinds=clique", "--set", "size=easy", "--seed", "4"]) == 0
    text = capsys.readouterr().out
    assert "Value 3. Best 3. Attempts left: 2." in text  # a turn of its own, with feasible 1 and ratio 3/4
    assert text.endswith("TERMINATED after 2 turns, reward 1 (feasible 1, optimal 1, ratio 1)\n")
