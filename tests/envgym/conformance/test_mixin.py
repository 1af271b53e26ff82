"""Four lines per environment, in pytest and in unittest."""

import unittest

from envgym.conformance import CHECKS, EnvConformance
from envgym.wrappers import AnyEnv, TurnLimit
from tests.support.toys import Sums


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
