"""`envgym list --kind`: what can be chosen, with its settings."""

import json
import subprocess
import sys

import pytest

from envgym.cli.main import main

Capture = pytest.CaptureFixture[str]


def test_kinds_are_listed_with_their_plugins(capsys: Capture) -> None:
    assert main(["list", "--kind"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"credit", "loss", "search", "agent", "verifier", "metric", "tracker", "recipe"} <= set(lines)
    assert "gae_turn" in lines["credit"]


def test_plugins_of_a_kind_are_listed_with_path_summary_and_settings(capsys: Capture) -> None:
    assert main(["list", "--kind", "credit"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("gigpo  envgym.trainer.methods.credit.gigpo:Gigpo")
    assert lines[place + 1].startswith("    ")
    assert "    discount = 0.95  Of rewards to come, per turn." in lines[place + 2 : place + 6]


def test_list_of_a_kind_is_json_too(capsys: Capture) -> None:
    assert main(["list", "--kind", "wrapper", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    defaults = {name: {key["key"]: key["default"] for key in row["settings"]} for name, row in rows.items()}
    assert defaults["horizon"] == {"num_tasks": "3", "all_or_nothing": "false"}
    assert defaults["turn_limit"] == {"max_turns": "required"}
    (limit,) = rows["time_limit"]["settings"]  # its clock can be given in code alone
    assert (limit["key"], limit["type"]) == ("limit_s", "number")
    assert limit["description"] == "Seconds after which an episode is truncated."


def test_unknown_kind_is_refused_with_near_ones(capsys: Capture) -> None:
    assert main(["list", "--kind", "credits"]) == 2
    assert "kind must be a known name, got 'credits' (envgym list --kind); did you mean credit or weights?" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [["--kind"], ["--kind", "credit"], ["--kind", "agent"]])
def test_list_imports_no_torch_that_it_does_not_need(words: list[str]) -> None:
    code = f"import sys; from envgym.cli.main import main; main({['list', *words]}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
