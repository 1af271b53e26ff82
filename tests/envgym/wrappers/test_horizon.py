"""Tasks follow one another in one episode, the same ones after the same first."""

import pytest

from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid
from envgym.errors import InvalidInput
from envgym.records import StepRecord, StepResult
from envgym.wrappers import Faults, Horizon, TryAgain
from envgym.wrappers.faults import FaultRates
from tests.support.toys import Counter, Sums


def record_of(result: StepResult) -> StepRecord:
    record: StepRecord = result.info["envgym"]
    return record


def test_the_next_task_follows_the_end_of_one_and_each_pays_its_part() -> None:
    env = Horizon(Sums(), 4)
    env.reset(seed=1)
    first = env.task
    results = [env.step(env.oracle() if turn != 1 else "no") for turn in range(4)]
    assert results[0].observation.startswith("Right.\nTask 2 of 4:\nWhat is ")
    assert [result.reward for result in results] == [0.25, 0.0, 0.25, 0.25]
    assert [result.terminated for result in results] == [False, False, False, True]
    assert [record_of(result).turn for result in results] == [0, 1, 2, 3]
    assert env.task == first


def test_all_or_nothing_pays_at_the_end_alone() -> None:
    for wrong, expected in ((None, [0.0, 0.0, 1.0]), (1, [0.0, 0.0, 0.0])):
        env = Horizon(Sums(), 3, all_or_nothing=True)
        env.reset(seed=1)
        assert [env.step("no" if turn == wrong else env.oracle()).reward for turn in range(3)] == expected


def test_tasks_after_the_same_first_are_the_same_whatever_the_seed() -> None:
    env = Horizon(Sums(), 3)
    chains = []
    for seed in (1, 2):
        env.reset(seed=seed, options={"split": "test", "index": 5})
        chains.append([str(env.step("no").observation) for _ in range(3)])
    assert chains[0] == chains[1]
    env.reset(seed=1, options={"split": "test", "index": 6})
    assert [str(env.step("no").observation) for _ in range(3)] != chains[0]


def test_all_tasks_are_of_the_split_of_the_first() -> None:
    env = Horizon(Sums(), 8)
    env.reset(seed=1, options={"split": "test"})
    for _ in range(7):
        env.step("no")
        assert env.unwrapped.task.split is Split.TEST


def test_one_task_is_the_env_itself() -> None:
    env, plain = Horizon(Sums(), 1), Sums()
    assert env.reset(seed=3) == plain.reset(seed=3)
    assert env.step("no")[:4] == plain.step("no")[:4]


def test_truncated_and_invalid_tasks_are_the_last() -> None:
    env = Horizon(Counter(max_turns=1), 3)
    env.reset(seed=0)
    assert record_of(env.step("x")).ending is Ending.TRUNCATED_TURNS
    broken = Horizon(Faults(Counter(), FaultRates(infra_failure=1.0), seed=0), 3)
    broken.reset(seed=0)
    record = record_of(broken.step("x"))
    assert (record.ending, isinstance(record.reward, Invalid)) == (Ending.ERROR_TOOL_INFRA, True)


def test_a_fork_goes_on_with_the_same_tasks() -> None:
    env = Horizon(Sums(), 3)
    env.reset(seed=1)
    env.step("no")
    twin = env.fork()
    assert env.step("no")[:4] == twin.step("no")[:4]
    assert env.step(env.oracle()).reward == pytest.approx(1 / 3)
    assert twin.step("no").reward == 0.0


def test_several_attempts_for_each_of_several_tasks() -> None:
    env = Horizon(TryAgain(Sums(), 2), 2)
    env.reset(seed=1)
    rewards = [env.step("no").reward, env.step(env.oracle()).reward, env.step(env.oracle()).reward]
    assert rewards == [0.0, 0.25, 0.5]  # half of 0.5 at the second attempt, half of 1


def test_a_whole_chain_can_be_tried_again() -> None:
    env = TryAgain(Horizon(Sums(), 2), 2, discount=0.5)
    first = str(env.reset(seed=1).observation)
    env.step("no")
    assert env.step("no").observation.endswith(first)
    # The second time both are right, each worth half of a half.
    assert [env.step(env.oracle()).reward for _ in range(2)] == [0.25, 0.25]


def test_number_of_tasks_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="num_tasks must be at least 1, got 0"):
        Horizon(Sums(), 0)
