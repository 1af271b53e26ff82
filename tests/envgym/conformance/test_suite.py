"""Each defect that the suite knows is planted in an env and found by the check meant for it."""

import math
import unittest
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym import Action, Env, ForkCapability, Reply, Split, Task
from envgym.conformance import CHECKS, EnvConformance, check_env_conformance, contract, is_passed
from envgym.conformance.agents import call_text
from envgym.conformance.env_under_test import Check, CheckStatus, EnvUnderTest, as_text
from envgym.conformance.red_team import _contents, highest_mean
from envgym.conformance.suite import run_check
from envgym.wrappers import AnyEnv, TurnLimit
from tests.envgym.conformance import broken_tasks, broken_worlds
from tests.support.toys import Counter, CounterState, CounterTasks, Sums


@pytest.mark.parametrize("make", [Counter, Sums])
def test_sound_env_passes_every_check_that_applies(make: type[Env[Any]]) -> None:
    checks = check_env_conformance(make)
    assert [check.name for check in checks] == list(CHECKS)
    assert [check for check in checks if check.status is CheckStatus.FAIL] == []
    skipped = {check.name for check in checks if check.status is CheckStatus.SKIP}
    assert skipped <= {"answer_is_hidden", "all_candidates_pay_nothing", "grader_files_pay_nothing"}


DEFECTS = [*broken_worlds.DEFECTS, *broken_tasks.DEFECTS]


@pytest.mark.parametrize("name, make, told", DEFECTS, ids=[f"{name}-{make.__name__}" for name, make, _ in DEFECTS])
def test_defect_is_found_by_the_check_meant_for_it(name: str, make: type[Env[Any]], told: str) -> None:
    check = run_check(name, EnvUnderTest(make=make))
    assert (check.status, told in check.detail) == (CheckStatus.FAIL, True), check
    assert not is_passed([check])


def test_every_check_finds_some_defect() -> None:
    assert set(CHECKS) - {name for name, _, _ in DEFECTS} == {"costs_are_known"}, "it is tested below"


def test_slow_turns_must_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Counter):
        blocking = True

    monkeypatch.setattr(contract, "_SLOW_TURN_S", 0.0)
    assert run_check("costs_are_known", EnvUnderTest(make=Waiting)).status is CheckStatus.PASS
    check = run_check("costs_are_known", EnvUnderTest(make=Counter))
    assert (check.status, "must be declared with blocking = True" in check.detail) == (CheckStatus.FAIL, True)


class Silent(Env[CounterState]):
    """No oracle, no tools, no test split, no forks."""

    fork_capability = ForkCapability.NONE

    class Tasks(CounterTasks):
        def size(self, split: Split) -> int:
            return super().size(split) if split is Split.TRAIN else 0

    tasks = Tasks()

    def begin(self, task: Task) -> str:
        self.state = CounterState(target=0, limit=0)
        return "..."

    def respond(self, action: Action) -> Reply:
        return Reply(terminated=True)


def test_what_cannot_be_checked_is_said_with_its_reason() -> None:
    checks = {check.name: check for check in check_env_conformance(Silent)}
    assert is_passed(tuple(checks.values()))
    reasons = {name: check.detail for name, check in checks.items() if check.status is CheckStatus.SKIP}
    assert reasons["oracle_reaches_optimum"] == "the env defines no oracle()"
    assert reasons["splits_do_not_overlap"] == "no tasks in test"
    assert reasons["grader_files_pay_nothing"] == "the env has no tool that takes a string"
    assert "fork capability is none" in reasons["survives_pickle"]
    assert checks["fork_agrees"].detail == "declares that it cannot be forked, and refuses"


def test_env_may_declare_what_does_not_apply_to_it() -> None:
    class Copying(broken_tasks.TellingSums):
        unchecked: ClassVar[dict[str, str]] = {"answer_is_hidden": "the task is to copy"}

    check = run_check("answer_is_hidden", EnvUnderTest(make=Copying))
    assert (check.status, check.detail) == (CheckStatus.SKIP, "the env declares: the task is to copy")


def test_crash_of_the_env_is_a_failed_check() -> None:
    class Crashing(Counter):
        def oracle(self) -> str:
            raise ZeroDivisionError("a bug")

    check = run_check("oracle_reaches_optimum", EnvUnderTest(make=Crashing))
    assert (check.status, check.detail) == (CheckStatus.FAIL, "ZeroDivisionError: a bug")


def test_replayed_env_passes() -> None:
    class Replayed(Counter):
        fork_capability = ForkCapability.REPLAY

    checks = check_env_conformance(Replayed, num_tasks=5)
    assert [check for check in checks if check.status is CheckStatus.FAIL] == []


class TestCounter(EnvConformance):
    env_id = "tests.support.toys:Counter"
    env_kwargs = {"max_turns": 6}  # noqa: RUF012  # declared as a ClassVar in the base


class TestWrappedSums(EnvConformance):
    num_tasks = 8

    @classmethod
    def make_env(cls) -> AnyEnv:
        return TurnLimit(Sums(), 3)


def test_there_is_one_test_per_check() -> None:
    assert {name for name in dir(EnvConformance) if name.startswith("test_")} == {f"test_{name}" for name in CHECKS}


def test_suite_runs_under_unittest_and_reports_what_is_wrong() -> None:
    class Wrong(Sums):
        optimum = 0.5

    class WrongCase(EnvConformance, unittest.TestCase):
        num_tasks = 5

        @classmethod
        def make_env(cls) -> AnyEnv:
            return Wrong()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(WrongCase).run(result)
    assert result.testsRun == len(CHECKS)
    failed = {case.id().rpartition("test_")[2] for case, _ in result.failures}
    assert failed == {"oracle_reaches_optimum", "survives_pickle"}, "a class inside a function cannot be pickled"
    assert result.errors == []


THREE_CHECKS = (
    Check(name="first", status=CheckStatus.PASS, detail="6 scripts", seconds=0.123),
    Check(name="second_one", status=CheckStatus.FAIL, detail="a rule is broken", seconds=1.0),
    Check(name="third", status=CheckStatus.SKIP, detail="no oracle", seconds=0.0),
)


def test_text_has_one_line_per_check_and_names_what_was_not_checked() -> None:
    assert as_text("toys/counter-v0", THREE_CHECKS).splitlines() == [
        "toys/counter-v0",
        "  PASS  first        0.12 s  6 scripts",
        "  FAIL  second_one   1.00 s  a rule is broken",
        "  SKIP  third        0.00 s  no oracle",
        "  1 passed, 1 failed, 1 not checked",
        "  not checked: third",
    ]


def test_passed_means_that_nothing_failed() -> None:
    assert not is_passed(THREE_CHECKS)
    assert is_passed(THREE_CHECKS[::2])
    assert is_passed(())


def test_bound_of_a_fair_coin_by_hand() -> None:
    # ln 1000 = 6.908 over 10 episodes is a budget of 0.6908 nats, and KL(1 || 0.5) = ln 2 = 0.6931 just exceeds it:
    # ten heads in a row refute a fair coin (0.5^10 = 0.00098 < 0.001), nine do not (0.5^9 = 0.00195).
    assert 0.99 < highest_mean(0.5, 10, 0.0, 1.0) < 1.0
    assert highest_mean(0.5, 9, 0.0, 1.0) == 1.0


def test_bound_solves_its_equation() -> None:
    mean = highest_mean(0.25, 40, 0.0, 1.0, num_tricks=3)
    divergence = mean * math.log(mean / 0.25) + (1 - mean) * math.log((1 - mean) / 0.75)
    assert 40 * divergence == pytest.approx(math.log(3000), rel=1e-9)


def test_chance_at_the_lower_end_allows_nothing() -> None:
    assert highest_mean(0.0, 20, 0.0, 1.0) == 0.0
    assert highest_mean(-1.0, 20, -1.0, 1.0) == -1.0


def test_chance_at_the_upper_end_allows_everything() -> None:
    assert highest_mean(1.0, 20, 0.0, 1.0) == 1.0
    assert highest_mean(0.0, 20, 0.0, 0.0) == 0.0, "a range of width 0"


@given(st.floats(0.01, 0.99), st.integers(1, 200), st.floats(-5, 5), st.floats(0.1, 9))
def test_bound_grows_with_reward_falls_with_episodes(
    chance: float, num_episodes: int, low: float, width: float
) -> None:
    unit = highest_mean(chance, num_episodes, 0.0, 1.0)
    assert chance <= unit <= 1.0
    assert highest_mean(low + width * chance, num_episodes, low, low + width) == pytest.approx(low + width * unit)
    assert highest_mean(chance, num_episodes + 1, 0.0, 1.0) <= unit + 1e-12
    assert highest_mean(chance, num_episodes, 0.0, 1.0, num_tricks=9) >= unit


def test_candidates_lose_their_marks() -> None:
    assert _contents("\\boxed{1}\n2\n\\boxed{3}") == "1 2 3"
    assert _contents(call_text("add", {"a": 1}).replace("\n", "")) == ""
