"""What the commands print, for a person and as JSON."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

import envgym
from envgym import registry
from envgym.cli.check import _coloured
from envgym.cli.common import styled
from envgym.cli.main import main
from envgym.cli.play import as_action, how_to_act
from envgym.cli.show import card_of
from envgym.conformance import CHECKS
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.parsing import parse_action
from envgym.records import Reply
from envgym.tools import Tool, ToolSpec, tool
from tests.support.toys import Counter, Sums, SumTasks

COUNTER = "tests.support.toys:Counter"
SUMS = "tests.support.toys:Sums"
TOOLS = tuple(item.spec for item in Counter().toolset().values())


class SharedTasks(SumTasks):
    """The same sums in both splits, each twice."""

    def task(self, split: Split, index: int) -> Task:
        return super().task(Split.TRAIN, index // 2)


class Talk(Counter):
    """Has a tool, and ends with the second thing that is said."""

    def respond(self, action: Action) -> Reply:
        self.turns_said = getattr(self, "turns_said", 0) + 1
        return Reply(observation="Go on." if self.turns_said < 2 else "Bye.", terminated=self.turns_said == 2)


class Safe(Counter):
    """Has another tool once `open_it` was called."""

    is_open = False

    @tool
    def open_it(self) -> str:
        """Open it."""
        self.is_open = True
        return "Open."

    @tool
    def look_inside(self) -> str:
        """Look inside."""
        return "Gold."

    def toolset(self) -> Mapping[str, Tool]:
        """Offer what can be done now."""
        return {name: item for name, item in super().toolset().items() if name != "look_inside" or self.is_open}


class OverlappingSums(Sums):
    """Tests on what it trains on."""

    tasks = SharedTasks(below=8)


class Broken(Sums):
    """Promises more than its oracle gets."""

    optimum = 0.5


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:  # a function of the words
    monkeypatch.setitem(sys.modules, "toy_defects", sys.modules[__name__])

    def run(*words: str, code: int = 0) -> str:
        assert main(words) == code
        return capsys.readouterr().out

    return run


# ---- list --------------------------------------------------------------------------------------------------------


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


def test_list_calls_nothing_unavailable_where_envgym_is_run_from_its_source(
    out: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("envgym.cli.list_envs.requires", unknown)
    monkeypatch.setattr("envgym.sandbox.has_program", lambda name: True)
    assert "unavailable" not in out("list")


def test_list_as_json_is_the_registry(out: Any) -> None:
    entries = json.loads(out("list", "--json"))
    assert [entry["id"] for entry in entries] == envgym.list_ids()
    assert {"entry_point", "summary", "requires", "origin"} <= set(entries[0])


# ---- show --------------------------------------------------------------------------------------------------------


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


# ---- tasks -------------------------------------------------------------------------------------------------------


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


# ---- play --------------------------------------------------------------------------------------------------------


def test_oracle_plays_to_its_end(out: Any) -> None:
    lines = out("play", SUMS, "--oracle", "--seed", "3").splitlines()
    assert lines[0].startswith("env: What is")
    assert lines[1].startswith("agent: ")
    assert lines[-1] == "TERMINATED after 1 turn, reward 1"


def test_person_plays_through_a_pipe(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = '/add 2\n/add {"amount": 3}\n/add\none line \\\nand another\nDONE\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    lines = out("play", COUNTER, "--index", "3").splitlines()  # train task 3 is: count to 5
    assert "tool: /add(amount: integer): Add to the counter." in lines
    assert any(line.startswith("env: The counter stands at 5;") for line in lines)
    assert any(line.startswith("env: add was not run") for line in lines)
    assert "agent: one line " in lines
    assert "and another" in lines
    assert lines[-1] == "TERMINATED after 5 turns, reward 1"


def test_end_of_input_leaves_the_episode(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert out("play", COUNTER).endswith("left; reward so far 0\n")


def test_person_calls_a_tool_that_is_offered_during_the_episode(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/look_inside\n/open_it\n/look_inside\n"))
    lines = out("play", "toy_defects:Safe").splitlines()
    assert [line for line in lines if line.startswith("env: ")][1:] == ["env: Open.", "env: Gold."]


def test_slash_calls_a_tool_and_only_a_tool() -> None:
    assert parse_action(as_action("/add 5", TOOLS)).tool_calls[0].arguments == {"amount": 5}
    assert parse_action(as_action('/add {"amount": 5}', TOOLS)).tool_calls[0].arguments == {"amount": 5}
    assert as_action("add 5", TOOLS) == "add 5"
    assert as_action("//add 5", TOOLS) == "/add 5"
    assert as_action("/add 5", ()) == "/add 5", "without tools a slash is a slash"


@pytest.mark.parametrize(
    "line,told", [("/ad 5", "no tool ad; did you mean /add? Begin"), ("/zzz", "no tool zzz; the tools are /add. Begin")]
)
def test_slash_before_no_tool_is_not_played(line: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(told)):
        as_action(line, TOOLS)


def test_example_of_the_help_is_one_that_the_game_understands(
    out: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main(["play", "--help"])
    found = re.search(r"printf '(.*)' \| envgym (play .*)", capsys.readouterr().out)
    assert found is not None
    monkeypatch.setattr(sys, "stdin", io.StringIO(found[1].replace("\\n", "\n")))
    text = out(*found[2].split())
    assert text.count("env: Higher. Guesses left") + text.count("env: Lower. Guesses left") == 2


def test_play_calls_no_message_the_final_answer_where_talk_goes_on(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Good day.\nThat is all.\n"))
    lines = out("play", "toy_defects:Talk").splitlines()
    assert lines[-2:] == ["env: Bye.", "TERMINATED after 2 turns, reward 0"]


def test_play_says_how_to_act_why_it_ended_and_what_it_did_not_read(
    out: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n/gues 3\n//gues 3\nmore\n\nand more\n"))
    assert main(["play", "puzzles/guess_number-v0"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert (
        "how: /guess NUMBER calls a tool; any other text is your final answer, or what you say; Ctrl-D leaves" in lines
    )
    assert lines[-4:] == [
        "agent: /gues 3",
        "TERMINATED after 1 turn, reward 0 (found 0)",
        "why: the last message calls no tool: it was taken as the final answer",
        "2 further lines were not read",
    ]
    assert told.err.splitlines() == [
        "an empty line is not played; type an action, or leave with Ctrl-D",
        "no tool gues; did you mean /guess? Begin with // to say it as text.",
    ]


def test_one_who_still_writes_is_not_waited_for() -> None:
    words = [sys.executable, "-m", "envgym", "play", SUMS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as player:
        assert player.stdin is not None
        assert player.stdout is not None
        player.stdin.write("0\n1\n")
        player.stdin.flush()
        lines = player.stdout.read().splitlines()
        assert player.wait() == 0
    assert lines[0] == "how: a line is your move or answer; Ctrl-D leaves"
    assert lines[-1] == "1 further line was not read"


def test_terminal_brings_lines_back() -> None:
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "envgym", "play", COUNTER, "--index", "3"]  # count to 5
    keys = iter([b"/add 2\n", b"\x1b[A\n", b"\x04"])  # a call, the line before, the end
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"}
    ) as player:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # nobody writes any more
            while part := os.read(ours, 4096):
                shown += part
                if shown.endswith(b"\n> "):
                    os.write(ours, next(keys))
        assert player.wait() == 0
    os.close(ours)
    assert shown.count(b"/add 2") == 2
    assert b"stands at 2" in shown
    assert b"stands at 4" in shown


def test_interrupted_player_is_told_what_was_reached(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    stream = io.StringIO()
    monkeypatch.setattr(stream, "readline", interrupt)
    monkeypatch.setattr(sys, "stdin", stream)
    assert out("play", COUNTER, code=130).endswith("left; reward so far 0\n")


def test_bytes_that_are_no_text_are_played_as_wrong_characters(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8", errors="strict"))
    assert "agent: \N{REPLACEMENT CHARACTER}" in out("play", SUMS)


def test_episode_at_its_limit_says_so(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/add 1\n/add 1\n"))
    lines = out("play", COUNTER, "--set", "max_turns=2").splitlines()
    assert lines[-1] == "why: the environment's limit on turns was reached"


def test_bare_value_fills_the_one_argument_that_is_needed() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    pair = ToolSpec(name="pair", description="", parameters={"type": "object", "properties": properties})
    with pytest.raises(InvalidInput, match=r"/pair must be given a JSON object, got 5 \(play\); write /pair {\"a\": "):
        as_action("/pair 5", [pair])
    needs_b = ToolSpec(name="half", description="", parameters={"properties": properties, "required": ["b"]})
    assert parse_action(as_action("/half 5", [needs_b])).tool_calls[0].arguments == {"b": 5}
    plain = ToolSpec(name="plain", description="", parameters={"properties": {}})
    with pytest.raises(InvalidInput, match=r"/plain must be given no arguments, got now \(play\); write /plain\."):
        as_action("/plain now", [plain])
    told = '/half B or /pair {"a": "...", "b": "..."} calls a tool'
    assert how_to_act([plain, pair, needs_b]).startswith(told), "each form once, a value before none"
    assert how_to_act([plain]).startswith("/plain calls a tool")
    text = ToolSpec(name="text", description="", parameters={"properties": {"words": {"type": "string"}}})
    assert parse_action(as_action("/text 5 and 6", [text])).tool_calls[0].arguments == {"words": "5 and 6"}
    assert parse_action(as_action("/text 5", [text])).tool_calls[0].arguments == {"words": "5"}


# ---- check -------------------------------------------------------------------------------------------------------


def test_check_of_a_sound_env_passes(out: Any) -> None:
    text = out("check", SUMS, "-n", "5")
    assert text.startswith(SUMS)
    assert "24 passed, 0 failed, 1 not checked" in text


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


# ---- colour ------------------------------------------------------------------------------------------------------


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("text", "bold") == "text"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert styled("text", "bold", "red") == "\033[1;31mtext\033[0m"
    assert styled("", "bold") == ""
    assert _coloured("  FAIL  name") == "  \033[31mFAIL\033[0m  name"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("text", "bold") == "text"
