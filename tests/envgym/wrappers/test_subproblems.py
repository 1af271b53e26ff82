"""Several problems in one message: what is shown, how blocks are read, what they are paid."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.tasks import Split, Task, split_of
from envgym.core.turns import Ending, Invalid, Scored
from envgym.errors import InvalidInput
from envgym.wrappers import Subproblems
from envgym.wrappers.base import record_of, reset_record_of
from envgym.wrappers.subproblems import read_blocks
from tests.support.toys import Sums


def started(num_problems: int = 3, **options: Any) -> Subproblems:
    env = Subproblems(Sums(), num_problems)
    env.reset(seed=1, options=options)
    return env


def paid(env: Subproblems, *answers: str) -> Scored:
    text = " and ".join(f"<p{number}>{answer}</p{number}>" for number, answer in enumerate(answers, start=1))
    result = env.step(text)
    assert record_of(result).ending is Ending.TERMINATED
    reward = record_of(result).reward
    assert isinstance(reward, Scored)
    return reward


def answers(env: Subproblems) -> list[str]:
    blocks = read_blocks(env.oracle(), env.num_problems)
    assert blocks is not None
    return blocks


def test_all_problems_are_shown_and_the_last_is_the_task() -> None:
    env = Subproblems(Sums(), 3)
    record = reset_record_of(env.reset(seed=1))
    text = str(record.observation)
    assert [line.partition(":")[0] for line in text.splitlines() if line.startswith("Problem")] == [
        "Problem 1",
        "Problem 2",
        "Problem 3",
    ]
    assert text.endswith(f"Problem 3: {record.task.prompt}")
    assert env.task == record.task
    again = Subproblems(Sums(), 3)
    assert str(again.reset(seed=9, options={"task": record.task}).observation) == text, "by the task's content alone"


def test_the_solved_prefix_is_paid() -> None:
    env = started()
    first, second, third = answers(env)
    assert paid(env, first, second, third).value == 1.0
    env = started()
    reward = paid(env, first, "no", third)  # the third is right, and comes after a failure
    assert reward.value == pytest.approx(1 / 3)
    assert reward.components == {"p1": 1.0, "p2": 0.0, "p3": 0.0, "format": 1.0}
    assert paid(started(), "no", second, third).value == 0.0


def test_badly_written_message_earns_nothing() -> None:
    env = started()
    result = env.step(env.oracle().replace("</p2>", ""))
    reward = record_of(result).reward
    assert isinstance(reward, Scored)
    assert (reward.value, reward.components["format"]) == (0.0, 0.0)


@given(st.integers(1, 4), st.permutations(range(4)))
def test_blocks_are_read_in_order_alone(count: int, order: list[int]) -> None:
    places = [place for place in order if place < count]
    text = "x".join(f"<p{place + 1}> {place} </p{place + 1}>" for place in places)
    expected = [f" {place} " for place in range(count)] if places == sorted(places) else None
    assert read_blocks(text, count) == expected


def test_own_subproblems_of_a_task_come_first() -> None:
    sub = [{"prompt": f"What is {number} + 1?", "payload": {"a": number, "b": 1}} for number in (5, 6)]
    payload: dict[str, Any] = {"a": 2, "b": 2, "subproblems": sub}
    task = Task(id="train/own", prompt="What is 2 + 2?", payload=payload, split=split_of(payload))
    env = started(2, task=task)
    assert answers(env) == ["7", "4"], "the last one before the task"
    with pytest.raises(InvalidInput, match=r"payload subproblems must hold 3, got 2 \(task train/own\); lower"):
        started(4, task=task)
    [need] = Subproblems(Sums(), 2, own=True).task_needs()
    assert need.read(task)
    assert not need.read(replace(task, payload={"a": 2, "b": 2})), "no task of its own"
    [need] = Subproblems(Sums(), 2).task_needs()
    assert need.read(replace(task, payload={"a": 2, "b": 2})), "other tasks replace them"
    for cell in (None, ""):
        assert need.read(replace(task, payload={**payload, "subproblems": cell})), "an empty cell"
    for own in (False, True):
        wrapper = Subproblems(Sums(), 4, own=own)
        with pytest.raises(InvalidInput, match=r"must hold 3, got 2 \(task train/own\); lower num_problems to 3"):
            wrapper.task_needs()[0].read(task)
        [need] = Subproblems(Sums(), 3, own=own).task_needs()
        assert need.read(task)
    broken = replace(task, payload={**payload, "subproblems": ["2 + 2"]})
    with pytest.raises(InvalidInput, match="must be a list of mappings with `prompt` and `payload`"):
        started(2, task=broken)


def test_one_problem_is_the_task_alone_and_none_is_refused() -> None:
    env = started(1)
    assert paid(env, *answers(env)).value == 1.0
    with pytest.raises(InvalidInput, match="num_problems must be at least 1, got 0"):
        Subproblems(Sums(), 0)


def test_failure_of_the_env_makes_the_reward_invalid() -> None:
    class Gone(Sums):
        def respond(self, action: Any) -> Any:
            raise OSError("gone")

    env = Subproblems(Gone(), 2)
    env.reset(seed=1)
    assert isinstance(record_of(env.step("<p1>1</p1><p2>2</p2>")).reward, Invalid)


def test_fork_answers_alike() -> None:
    env = started()
    twin = env.fork()
    assert twin.oracle() == env.oracle()
    assert twin.step(env.oracle())[1] == env.step(env.oracle())[1] == 1.0
    assert env.task.split in Split


def test_blocks_named_in_the_thinking_are_no_answers() -> None:
    env = started()
    right = env.oracle()
    result = env.step(f"<think>I write <p1>, then </p1>: <p1>0</p1></think>\n{right}")
    assert result.reward == 1.0
    env = started()
    assert env.step(f"<think>{right}</think>\nI do not know.").reward == 0.0
