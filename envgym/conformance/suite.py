"""The table of checks, the one way to run them, and a test class for pytest and unittest."""

import time
import unittest
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import envgym
from envgym.conformance import contract, red_team, repeats, task_source, validity
from envgym.conformance.env_under_test import Check, CheckFailed, CheckSkipped, CheckStatus, EnvUnderTest
from envgym.wrappers import AnyEnv

CHECKS: Mapping[str, Callable[[EnvUnderTest], str]] = MappingProxyType(
    {
        check.__name__: check
        for check in (
            contract.passes_gymnasium_checker,
            contract.runs_in_vector_env,
            repeats.same_seed_same_episode,
            repeats.no_global_rng,
            repeats.interleaved_with_another,
            repeats.in_two_threads,
            repeats.survives_pickle,
            repeats.fork_agrees,
            repeats.forks_are_independent,
            repeats.order_is_enforced,
            contract.records_are_consistent,
            contract.hostile_actions_are_answered,
            validity.validity_is_the_same_for_all_answers,
            contract.rewards_in_range,
            contract.observations_in_bound,
            task_source.oracle_reaches_optimum,
            task_source.splits_do_not_overlap,
            task_source.answer_is_hidden,
            red_team.chance_stays_at_declared,
            red_team.all_candidates_pay_nothing,
            red_team.others_answers_pay_nothing,
            red_team.format_alone_pays_nothing,
            red_team.prompt_echo_pays_nothing,
            red_team.injections_pay_nothing,
            red_team.grader_files_pay_nothing,
            contract.costs_are_known,
        )
    }
)
"""Name -> check; it returns what it saw, or raises `CheckFailed` or `CheckSkipped` with the reason."""


def run_check(name: str, subject: EnvUnderTest) -> Check:
    """Run one check; whatever it raises is its result."""
    start = time.perf_counter()
    reason = subject.unchecked.get(name)
    if reason is not None:
        status, detail = CheckStatus.SKIP, f"the env declares: {reason}"
    else:
        try:
            status, detail = CheckStatus.PASS, CHECKS[name](subject)
        except CheckFailed as failure:
            status, detail = CheckStatus.FAIL, str(failure)
        except CheckSkipped as skip:
            status, detail = CheckStatus.SKIP, str(skip)
        except Exception as error:  # noqa: BLE001  # whatever an env raises is a finding about it
            status, detail = CheckStatus.FAIL, f"{type(error).__name__}: {error}"
    return Check(name=name, status=status, detail=" ".join(detail.split()), seconds=time.perf_counter() - start)


def other_unchecked(subject: EnvUnderTest) -> list[Check]:
    """Return the entries of `unchecked` that name no check, such as keys of task files that the env does not read."""
    others = {name: reason for name, reason in subject.unchecked.items() if name not in CHECKS}
    return [Check(name=name, status=CheckStatus.SKIP, detail=reason, seconds=0.0) for name, reason in others.items()]


def check_env_conformance(make: Callable[[], AnyEnv], *, num_tasks: int = 20, seed: int = 0) -> tuple[Check, ...]:
    """Judge an environment; `make` returns a new instance at each call.

    Args:
        make: For example `functools.partial(envgym.make, "math/arithmetic-v0")`, or the env's class.
        num_tasks: Tasks of each split that are played; ten times as many are compared.
        seed: Of everything random in the suite.
    """
    subject = EnvUnderTest(make=make, num_tasks=num_tasks, seed=seed)
    return tuple(run_check(name, subject) for name in CHECKS)


class EnvConformance:
    """One test per check: four lines per environment.

    Example:
        class TestMyEnv(EnvConformance):
            env_id = "my_games/my_env-v0"
    """

    env_id: ClassVar[str] = ""
    """Registered id, or import path `module:Class`."""
    env_kwargs: ClassVar[dict[str, Any]] = {}  # the env's own keyword arguments
    num_tasks: ClassVar[int] = 20

    @classmethod
    def make_env(cls) -> AnyEnv:
        """Make an instance; override it where an id is not enough."""
        return envgym.make(cls.env_id, **cls.env_kwargs)


_SUBJECTS: dict[type, EnvUnderTest] = {}
"""One for each test class, so that its checks share the oracle's episodes."""


def _test(name: str) -> Callable[[EnvConformance], None]:
    def test(self: EnvConformance) -> None:
        new = EnvUnderTest(make=self.make_env, num_tasks=self.num_tasks)
        check = run_check(name, _SUBJECTS.setdefault(type(self), new))
        if check.status is CheckStatus.SKIP:
            raise unittest.SkipTest(check.detail)
        assert check.status is CheckStatus.PASS, check.detail

    test.__name__ = f"test_{name}"
    test.__doc__ = CHECKS[name].__doc__
    return test


for _name in CHECKS:
    setattr(EnvConformance, f"test_{_name}", _test(_name))
