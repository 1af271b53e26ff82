"""The suite as a test class, for pytest and unittest: four lines per environment."""

import unittest
from collections.abc import Callable
from typing import Any, ClassVar

import envgym
from envgym.conformance.env_under_test import EnvUnderTest
from envgym.conformance.report import CheckStatus
from envgym.conformance.suite import CHECKS, run_check
from envgym.wrappers import AnyEnv


class EnvConformance:
    """One test per check.

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
