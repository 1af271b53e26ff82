"""What the commands print and refuse: list, with the plug-ins of every kind, tasks, show, run."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

import envgym
from envgym import Split, Task, registry
from envgym.authoring.env_card import card_of
from envgym.cli.check import _coloured
from envgym.cli.common import styled
from envgym.cli.main import main
from envgym.conformance import CHECKS
from tests.support.toys import Counter, Sums, SumTasks

COUNTER = "tests.support.toys:Counter"
SUMS = "tests.support.toys:Sums"
TOOLS = tuple(item.spec for item in Counter().toolset().values())


class SharedTasks(SumTasks):
    def task(self, split: Split, index: int) -> Task:
        return super().task(Split.TRAIN, index // 2)


class OverlappingSums(Sums):
    tasks = SharedTasks(below=8)


class Broken(Sums):
    optimum = 0.5


def test_list_shows_every_id_with_its_summary_and_what_it_needs(out: Any) -> None:
    lines = out("list").splitlines()
    assert [line.split()[0] for line in lines] == envgym.list_ids()
    assert [sum(f"needs envgym[{extra}]" in line for line in lines) for extra in ("puzzles", "textarena")] == [2, 1]


def test_list_tells_what_cannot_be_used_for_which_package(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["numpy>=2.0", "nobody-has-this>=1; sys_platform != 'x' and extra == 'puzzles'", "numpy; extra == 'search'"]
    monkeypatch.setattr("envgym.cli.list_envs.requires", lambda name: asked)
    monkeypatch.setattr("envgym.sandbox.has_program", lambda name: True)
    lines = {line.split()[0]: line for line in out("list").splitlines()}
    assert lines["puzzles/wordle-v0"].endswith("[unavailable: needs envgym[puzzles], nobody-has-this is not installed]")
    assert lines["search/factbook-v0"].endswith("[needs envgym[search]]")
    entries = [entry for entry in json.loads(out("list", "--json")) if not entry["wheel"]]
    told = ["nobody-has-this" if "[unavailable" in lines[entry["id"]] else None for entry in entries]
    assert [entry["missing"] for entry in entries] == told


def test_list_calls_nothing_unavailable_if_run_from_source(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("envgym.cli.list_envs.requires", unknown)
    monkeypatch.setattr("envgym.sandbox.has_program", lambda name: True)
    assert "unavailable" not in out("list")


def test_list_as_json_is_the_registry(out: Any) -> None:
    entries = json.loads(out("list", "--json"))
    assert [entry["id"] for entry in entries] == envgym.list_ids()
    assert {"entry_point", "summary", "requires", "origin"} <= set(entries[0])


def test_show_tells_what_can_be_read_off_an_env(out: Any) -> None:
    text = out("show", COUNTER, "--set", "max_turns=5")
    for line in (
        "Count to a number with the tool `add`",
        "splits        train: 307, test: 93",
        "max_turns     5",
        "reward_range  [0.0, 1.0]",
        "fork          state",
        "max_turns    8",
        "add  Add to the counter.",
        "oracle: DONE",
        "env: [TERMINATED, reward 1]",
    ):
        assert line in text


def test_show_has_the_card_and_the_settings_of_an_env_that_needs_settings(out: Any) -> None:
    text = out("show", "data/file-v0")
    assert "not made without settings: data must be given, got None (data/file-v0)" in text
    assert "  test_share" in text
    assert "The rows of a data file or data set as tasks" in text


def test_show_as_json_holds_the_same(out: Any) -> None:
    facts = json.loads(out("show", SUMS, "--json"))
    assert (facts["id"], facts["class"]) == (SUMS, SUMS)
    assert facts["chance_score"] == 0.1
    assert facts["tools"] == {}
    assert facts["example"][-1] == ["env", "Right. [TERMINATED, reward 1]"]


def test_show_names_the_file_of_a_class(out: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(f"from {SUMS.replace(':', ' import ')}\nclass Mine(Sums):\n    pass\n")
    assert out("show", f"{tmp_path}/mine.py:Mine").splitlines()[0] == f"mine.py:Mine   {tmp_path}/mine.py:Mine"
    monkeypatch.chdir(tmp_path)
    assert json.loads(out("show", "mine.py:Mine", "--json"))["class"] == "mine.py:Mine"


def test_show_tells_what_a_factory_takes_and_does(out: Any, tmp_path: Any) -> None:
    path = tmp_path / "games.py"
    path.write_text(
        f"from {SUMS.replace(':', ' import ')}\n"
        'def easy(level: int = 2) -> Sums:\n    """Add small numbers."""\n    return Sums()\n'
    )
    path.with_suffix(".md").write_text("The card.")
    facts = json.loads(out("show", f"{path}:easy", "--json"))
    assert facts["parameters"] == {"level": "2"}
    assert (facts["id"], facts["summary"], facts["card"]) == ("games.py:easy", "Add small numbers.", "The card.")


def test_card_lies_beside_its_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_game.py").write_text("class Game: pass")
    monkeypatch.syspath_prepend(tmp_path)
    import a_game  # type: ignore[import-not-found]  # just written

    assert card_of(a_game.Game) is None
    (tmp_path / "README.md").write_text("of the folder")
    assert card_of(a_game.Game) == "of the folder"
    (tmp_path / "a_game.md").write_text("of the module")
    assert card_of(a_game.Game) == "of the module"


def test_tasks_hide_their_payload_until_asked(out: Any) -> None:
    shown = json.loads(out("tasks", SUMS, "-n", "2", "--split", "test", "--json"))
    assert [(task["id"], task["split"]) for task in shown] == [("test/0", "test"), ("test/1", "test")]
    assert all("payload" not in task and len(task["key"]) == 64 for task in shown)
    shown = json.loads(out("tasks", SUMS, "-n", "1", "--answers", "--json"))
    assert set(shown[0]["payload"]) == {"a", "b"}
    assert "What is" in out("tasks", SUMS, "-n", "1")


def test_tasks_of_a_small_split_end_with_it(out: Any) -> None:
    assert len(json.loads(out("tasks", COUNTER, "--split", "test", "-n", "500", "--json"))) == 93


def test_report_counts_duplicates_and_overlap(out: Any) -> None:
    text = out("tasks", SUMS, "--report", "-n", "100")
    assert "train  size 713, read 100, distinct 100, duplicates 0" in text
    assert "overlap of what was read: 0" in text
    report = json.loads(out("tasks", "toy_defects:OverlappingSums", "--report", "-n", "10", "--json", code=1))
    # 10 tasks are 5 sums twice each; both splits read the same 5.
    assert report["splits"]["train"] == {"size": SharedTasks(below=8).size(Split.TRAIN), "read": 10, "distinct": 5}
    assert len(report["shared"]) == 5


def test_check_of_a_sound_env_passes(out: Any) -> None:
    text = out("check", SUMS, "-n", "5")
    assert text.startswith(SUMS)
    assert "25 passed, 0 failed, 1 not checked" in text


def test_check_fails_with_exit_code_1_and_says_why(out: Any) -> None:
    result = json.loads(out("check", SUMS, "toy_defects:Broken", "-n", "5", "--json", code=1))
    assert list(result) == [SUMS, "toy_defects:Broken"]
    assert [check["name"] for check in result[SUMS]] == list(CHECKS)
    failed = [check for check in result["toy_defects:Broken"] if check["status"] == "FAIL"]
    assert [check["name"] for check in failed] == ["oracle_reaches_optimum"]
    assert "the oracle gets 1, declared 0.5" in failed[0]["detail"]


def test_check_runs_only_what_is_asked(out: Any) -> None:
    result = json.loads(out("check", COUNTER, "--only", "fork_agrees", "--json"))
    assert [check["name"] for check in result[COUNTER]] == ["fork_agrees"]


def test_check_of_all_skips_what_is_not_installed(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = registry.Registration(id="puzzles/x-v0", entry_point="no_such_package:Env", origin="envgym", requires="x")
    present = registry.Registration(id="toys/sums-v0", entry_point=SUMS, origin="register")
    monkeypatch.setattr(registry, "_registrations", {entry.id: entry for entry in (lacking, present)})
    result = json.loads(out("check", "--all", "-n", "3", "--json"))
    assert [(check["name"], check["status"]) for check in result["puzzles/x-v0"]] == [("make", "SKIP")]
    assert "pip install 'envgym[x]'" in result["puzzles/x-v0"][0]["detail"]
    assert len(result["toys/sums-v0"]) == len(CHECKS)
    assert main(["check", "puzzles/x-v0"]) == 2, "asked for by name it is bad input"


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("text", "bold") == "text"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert styled("text", "bold", "red") == "\033[1;31mtext\033[0m"
    assert styled("", "bold") == ""
    assert _coloured("  FAIL  name") == "  \033[31mFAIL\033[0m  name"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("text", "bold") == "text"


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
    assert "kind must be a known name, got 'credits' (envgym list --kind); did you mean credit?" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [["--kind"], ["--kind", "credit"], ["--kind", "agent"]])
def test_list_imports_no_torch_that_it_does_not_need(words: list[str]) -> None:
    code = f"import sys; from envgym.cli.main import main; main({['list', *words]}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
