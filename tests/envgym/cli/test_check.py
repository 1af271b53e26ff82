"""`envgym check` of several environments: how far it is, how long it will take, and the summary at its end."""

import re
import sys

import pytest

from envgym import registry
from envgym.cli.check import _place
from envgym.cli.main import main
from envgym.registry import Registration
from tests.support.toys import Sums

CHECKS = ("--only", "fork_agrees", "--only", "oracle_reaches_optimum")


class Broken(Sums):
    """Promises less than its oracle gets."""

    optimum = 0.5


def test_summary_names_what_failed_and_what_could_not_be_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "toy_defects", sys.modules[__name__])
    registered = [
        Registration(id="puzzles/x-v0", entry_point="no_such_package:Env", origin="envgym", requires="x"),
        Registration(id="toys/broken-v0", entry_point="toy_defects:Broken", origin="register"),
        Registration(id="toys/sums-v0", entry_point="tests.support.toys:Sums", origin="register"),
    ]
    monkeypatch.setattr(registry, "_registrations", {entry.id: entry for entry in registered})
    assert main(["check", "--all", "-n", "3", *CHECKS]) == 1
    counts, failed, absent = capsys.readouterr().out.splitlines()[-3:]
    assert re.fullmatch(r"3 environments in \d+ s: 1 passed, 1 failed, 1 not checked", counts)
    assert failed == "  failed       toys/broken-v0: oracle_reaches_optimum"
    assert absent.startswith("  not checked  puzzles/x-v0: ")
    assert "pip install 'envgym[x]'" in absent


def test_progress_says_which_environment_of_how_many_and_the_time_that_is_left() -> None:
    assert _place(0, 1, 0.0) == ""
    assert _place(0, 24, 0.0) == "environment 1 of 24"
    assert _place(4, 24, 60.0) == "environment 5 of 24, about 5 min 00 s left"  # 15 s for each of 20
