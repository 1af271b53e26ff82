"""Injected faults: what each looks like to the agent and in the record, and that they repeat."""

import pytest

from envgym import Ending, Invalid, Role
from envgym.errors import InvalidInput
from envgym.records import StepRecord
from envgym.wrappers import Faults
from envgym.wrappers.faults import CUT, UNAVAILABLE, FaultRates
from tests.support.toys import Counter

CALL = '<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>'


def faulty(rates: FaultRates, seed: int = 0) -> Faults:
    return Faults(Counter(max_turns=20), rates, seed=seed)


def played(env: Faults, seed: int | None, count: int = 12) -> list[StepRecord]:
    env.reset(seed=seed)
    return [env.step(CALL).info["envgym"] for _ in range(count)]


def test_without_faults_nothing_changes() -> None:
    env, plain = faulty(FaultRates()), Counter(max_turns=20)
    plain.reset(seed=3)
    assert played(env, 3) == [plain.step(CALL).info["envgym"] for _ in range(12)]


def test_failing_tool_is_an_observation_and_a_counted_turn() -> None:
    env = faulty(FaultRates(tool_failure=1.0))
    env.reset(seed=0)
    record = env.step(CALL + CALL).info["envgym"]
    assert [message.content for message in record.observation.messages] == [UNAVAILABLE] * 2
    assert {(message.role, message.name) for message in record.observation.messages} == {(Role.TOOL, "add")}
    assert (record.tool_calls, record.tool_errors, record.ending) == (2, 2, None)
    assert record.action == CALL + CALL
    assert len(record.action.tool_calls) == 2, "the record holds what was said"
    assert env.unwrapped.state.count == 0
    assert env.step("x").info["envgym"].turn == 1


def test_turn_without_tools_cannot_have_a_failing_tool() -> None:
    env = faulty(FaultRates(tool_failure=1.0))
    env.reset(seed=0)
    assert env.step("DONE").info["envgym"].ending is Ending.TERMINATED


def test_infrastructure_failure_is_an_invalid_reward() -> None:
    env = faulty(FaultRates(infra_failure=1.0))
    env.reset(seed=0)
    result = env.step(CALL)
    record = result.info["envgym"]
    assert record.ending is Ending.ERROR_TOOL_INFRA
    assert isinstance(record.reward, Invalid)
    assert (result.reward, result.truncated, result.terminated) == (0.0, True, False)


def test_truncation_cuts_each_message_and_says_so() -> None:
    env = faulty(FaultRates(truncation=1.0, kept_chars=11))
    env.reset(seed=0)
    assert env.step(CALL).observation == "The counter" + CUT
    assert env.step("DONE").observation == "", "a short text is not cut"


def test_latency_is_uniform_up_to_its_bound() -> None:
    waits: list[float] = []
    env = Faults(Counter(max_turns=500), FaultRates(latency_s=2.0), seed=0, sleep=waits.append)
    played(env, 0, count=400)
    assert 0 <= min(waits) < 0.05
    assert 1.95 < max(waits) <= 2.0
    # The mean of 400 draws has a standard deviation of 2 / sqrt(12 * 400) = 0.029.
    assert abs(sum(waits) / 400 - 1.0) < 0.12


def test_rate_is_kept() -> None:
    records = played(Faults(Counter(max_turns=500), FaultRates(tool_failure=0.3), seed=5), 0, count=400)
    failed = sum(UNAVAILABLE in record.observation for record in records)
    # Standard deviation sqrt(400 * 0.3 * 0.7) = 9.2.
    assert abs(failed - 120) < 37


def test_faults_repeat_for_a_seed_whatever_was_played_before() -> None:
    rates = FaultRates(tool_failure=0.4, truncation=0.4, kept_chars=5)
    expected = played(faulty(rates, seed=1), 7)
    env = faulty(rates, seed=1)
    played(env, 8)
    assert played(env, 7) == expected
    assert played(faulty(rates, seed=2), 7) != expected


def test_raising_one_rate_leaves_the_other_faults_where_they_are() -> None:
    few = played(faulty(FaultRates(tool_failure=0.3)), 7)
    both = played(faulty(FaultRates(tool_failure=0.3, truncation=1.0, kept_chars=500)), 7)
    assert [UNAVAILABLE in record.observation for record in few] == [
        UNAVAILABLE in record.observation for record in both
    ]


@pytest.mark.parametrize("rates", [{"tool_failure": 1.1}, {"infra_failure": -0.1}, {"truncation": float("nan")}])
def test_rate_must_be_a_probability(rates: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"must lie in \[0, 1\]"):
        FaultRates(**rates)  # type: ignore[arg-type]  # no rate here is the int kept_chars


def test_latency_must_not_be_negative() -> None:
    with pytest.raises(InvalidInput, match="latency_s and kept_chars must be at least 0"):
        FaultRates(latency_s=-1.0)
