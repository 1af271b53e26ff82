"""`envgym play`: what a person or the oracle plays, and is told."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from envgym import Action, Reply, tool
from envgym.authoring.typed_actions import as_action, how_to_act
from envgym.cli.main import main
from envgym.errors import InvalidInput
from envgym.parsing import parse_action
from envgym.tools import Tool, ToolSpec
from tests.support.toys import Counter

COUNTER = "tests.support.toys:Counter"
SUMS = "tests.support.toys:Sums"
TOOLS = tuple(item.spec for item in Counter().toolset().values())


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
        return {name: item for name, item in super().toolset().items() if name != "look_inside" or self.is_open}


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
    properties = {"a": {"type": "string"}, "b": {"type": "integer"}}
    pair = ToolSpec(name="pair", description="", parameters={"type": "object", "properties": properties})
    with pytest.raises(InvalidInput, match=r"/pair must be given a JSON object, got 5 \(play\); write /pair {\"a\": "):
        as_action("/pair 5", [pair])
    needs_b = ToolSpec(name="half", description="", parameters={"properties": properties, "required": ["b"]})
    assert parse_action(as_action("/half 5", [needs_b])).tool_calls[0].arguments == {"b": 5}
    plain = ToolSpec(name="plain", description="", parameters={"properties": {}})
    with pytest.raises(InvalidInput, match=r"/plain must be given no arguments, got now \(play\); write /plain\."):
        as_action("/plain now", [plain])
    told = '/half B or /pair {"a": "...", "b": 1} calls a tool'
    assert how_to_act([plain, pair, needs_b], "Ctrl-D leaves").startswith(told), "each form once, a value before none"
    assert how_to_act([plain], "Ctrl-D leaves").startswith("/plain calls a tool")
    text = ToolSpec(name="text", description="", parameters={"properties": {"words": {"type": "string"}}})
    assert parse_action(as_action("/text 5 and 6", [text])).tool_calls[0].arguments == {"words": "5 and 6"}
    assert parse_action(as_action("/text 5", [text])).tool_calls[0].arguments == {"words": "5"}
