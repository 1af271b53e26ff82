"""Runs in a container: the tests of a repository by name, and reports each outcome when all have ended.

python run.py RUNNER REPORT NAME ...
"""

import json
import os
import sys
import unittest
from typing import Any

outcomes: dict[str, str] = {}


def main() -> None:
    runner, report, *names = sys.argv[1:]
    sys.path[0] = os.getcwd()
    {"pytest": run_pytest, "unittest": run_unittest}[runner](names)
    with open(report, "w", encoding="utf-8") as file:
        json.dump(outcomes, file)


def run_unittest(names: list[str]) -> None:
    class Result(unittest.TextTestResult):
        def note(self, test: unittest.TestCase, outcome: str) -> None:
            outcomes.setdefault(test.id(), outcome)

        def addSuccess(self, test: unittest.TestCase) -> None:  # unittest's name
            super().addSuccess(test)
            self.note(test, "passed")

        def addError(self, test: unittest.TestCase, error: Any) -> None:  # likewise
            super().addError(test, error)
            self.note(test, "failed")

        def addFailure(self, test: unittest.TestCase, error: Any) -> None:  # likewise
            super().addFailure(test, error)
            self.note(test, "failed")

        def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, error: Any) -> None:  # likewise
            super().addSubTest(test, subtest, error)
            if error is not None:
                self.note(test, "failed")

    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    unittest.TextTestRunner(resultclass=Result).run(suite)  # type: ignore[arg-type]  # a class of results, as unittest says


def run_pytest(names: list[str]) -> None:
    import pytest

    class Reporter:
        def pytest_runtest_logreport(self, report: Any) -> None:
            has_failed = outcomes.get(report.nodeid, "passed") != "passed"
            if not has_failed and (report.when == "call" or report.outcome != "passed"):
                outcomes[report.nodeid] = report.outcome

    pytest.main(["-q", "-p", "no:cacheprovider", *names], plugins=[Reporter()])


if __name__ == "__main__":
    main()
