"""What holds for every wrapper: order, records, forks, the rest of the contract; and plain text both ways."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envgym.core.turns import Ending
from envgym.errors import InvalidInput, ResetNeeded
from envgym.records import StepRecord
from envgym.wrappers import (
    AnyEnv,
    DependentHorizon,
    Faults,
    GivenHint,
    Horizon,
    PromptVariants,
    Record,
    SkillContext,
    SubgoalRewards,
    TextOnly,
    TimeLimit,
    TryAgain,
    TurnLimit,
    Wrapper,
)
from envgym.wrappers.faults import FaultRates
from tests.support.toys import Counter, Sums

CALL = '<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>'
Wrap = Callable[[AnyEnv, Path], Wrapper]

WRAPPERS: dict[str, Wrap] = {
    "base": lambda env, folder: Wrapper(env),
    "turn_limit": lambda env, folder: TurnLimit(env, 4),
    "time_limit": lambda env, folder: TimeLimit(env, 1e9),
    "record": lambda env, folder: Record(env, folder / "episodes.jsonl"),
    "text_only": lambda env, folder: TextOnly(env),
    "subgoal_rewards": lambda env, folder: SubgoalRewards(env, {"half": 0.5}, potential=True),
    "try_again": lambda env, folder: TryAgain(env, 1),
    "horizon": lambda env, folder: Horizon(env, 1),
    "dependent_horizon": lambda env, folder: DependentHorizon(env, 1),
    "hint": lambda env, folder: GivenHint(env, 1.0),
    "prompt_variants": lambda env, folder: PromptVariants(env, [{"observation": "Do: {task}"}]),
    "skill_context": lambda env, folder: SkillContext(env, ["Count in hundreds."], 1.0),
    "faults": lambda env, folder: Faults(env, FaultRates(tool_failure=0.5, truncation=0.5, kept_chars=9), seed=1),
}


def all_at_once(env: AnyEnv, folder: Path) -> Wrapper:
    for wrap in WRAPPERS.values():
        env = wrap(env, folder)
    assert isinstance(env, Wrapper)
    return env


every_wrapper = pytest.mark.parametrize("wrap", [*WRAPPERS.values(), all_at_once], ids=[*WRAPPERS, "all_at_once"])


@every_wrapper
def test_order_of_reset_and_step_is_kept(wrap: Wrap, tmp_path: Path) -> None:
    env = wrap(Counter(), tmp_path)
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.reset(seed=0)
    env.step("DONE")
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.close()
    env.close()


@every_wrapper
def test_fork_goes_on_alike_and_does_not_touch_its_original(wrap: Wrap, tmp_path: Path) -> None:
    env = wrap(Counter(), tmp_path)
    env.reset(seed=3)
    env.step(CALL)
    twin, other = env.fork(), env.fork()
    assert twin.unwrapped is not env.unwrapped
    for _ in range(3):
        twin.step(CALL)
    rest = [CALL, "x", "DONE"]
    assert [env.step(action)[:4] for action in rest] == [other.step(action)[:4] for action in rest]


@every_wrapper
def test_typed_records_are_passed_through(wrap: Wrap, tmp_path: Path) -> None:
    env = wrap(Counter(), tmp_path)
    assert env.reset(seed=3).info["envgym"].task == env.task
    record: StepRecord = env.step("DONE").info["envgym"]
    assert (record.action, record.ending, record.turn) == ("DONE", Ending.TERMINATED, 0)


@every_wrapper
def test_the_rest_of_the_contract_is_the_envs(wrap: Wrap, tmp_path: Path) -> None:
    inner = Counter()
    env = wrap(inner, tmp_path)
    env.reset(seed=3, options={"split": "test", "index": 2})
    assert env.unwrapped is inner
    assert (env.tasks, env.task, env.name) == (inner.tasks, inner.task, "Counter")
    assert (env.system_prompt, env.blocking) == (inner.system_prompt, False)
    assert env.fork_capability is inner.fork_capability
    assert env.oracle() == inner.oracle()
    assert env.action_space == inner.action_space


def test_only_an_envgym_env_can_be_wrapped() -> None:
    stranger: Any = object()
    with pytest.raises(InvalidInput, match=r"env must be an envgym.Env, .*\(TurnLimit\)"):
        partial(TurnLimit, max_turns=1)(stranger)


def test_first_text_holds_instructions_tools_and_task() -> None:
    env = TextOnly(Counter())
    text = env.reset(seed=1).observation
    assert type(text) is str
    assert text == (
        "Use the tool to count, then say DONE.\n\n"
        "Tools:\n"
        "- add(amount: integer): Add to the counter.\n"
        'To call one, write <tool_call>{"name": "...", "arguments": {...}}</tool_call>\n\n'
        f"{Counter().reset(seed=1).observation}"
    )


def test_later_texts_are_plain_observations() -> None:
    env = TextOnly(Counter())
    env.reset(seed=1)
    result = env.step('<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>')
    assert type(result.observation) is str
    assert result.observation == str(result.info["envgym"].observation)
    assert result.info["envgym"].tool_calls == 1


def test_without_instructions_and_tools_the_task_stands_alone() -> None:
    assert TextOnly(Sums()).reset(seed=1).observation == Sums().reset(seed=1).observation


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64])
def test_integers_of_numpy_are_seeds(kind: Callable[[int], int]) -> None:
    rates = FaultRates(latency_s=1.0)
    plain, tasks = Sums(), []
    waits: list[list[float]] = [[], []]
    for seed, seconds in ((kind(7), waits[0]), (7, waits[1])):
        env = Faults(Sums(), rates, seed=kind(3), sleep=seconds.append)
        record = env.reset(seed=seed).info["envgym"]
        env.step("no")
        tasks.append(record.task)
        assert (record.seed, type(record.seed)) == (7, int)
    assert waits[0] == waits[1]
    assert tasks[0] == tasks[1] == plain.reset(seed=kind(7)).info["envgym"].task


@pytest.mark.parametrize("seed", [1.5, -1, "3", True, np.float64(2)])
@pytest.mark.parametrize("env", [Sums(), TurnLimit(Sums(), 3)])
def test_a_seed_that_is_no_whole_number_is_refused(seed: object, env: Sums | TurnLimit) -> None:
    with pytest.raises(InvalidInput, match="seed must be a whole number of at least 0, got"):
        env.reset(seed=seed)  # type: ignore[arg-type]  # the fault under test
