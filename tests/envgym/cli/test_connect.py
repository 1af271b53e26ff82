"""`envgym connect` prints lines that run, and refuses what the other project cannot use.

The programs for TRL and OpenEnv are run in tests/other_projects; here is what needs neither.
"""

import ast
import asyncio
import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from envgym import Split, Task
from envgym.authoring import ListTasks
from envgym.cli.main import build_parser
from tests.support.mcp_clients import started
from tests.support.pages import ROOT
from tests.support.toys import Counter

CONFLICTING = "tests.envgym.connect.test_trl:ReservedName"
COUNTER = "tests.support.toys:Counter"
FEW = f"{__name__}:Few"
Command = Callable[..., tuple[int, str, str]]


class Few(Counter):
    """Three tasks."""

    tasks = ListTasks(
        [
            Task(id=str(number), prompt="Count.", payload={"target": number}, split=split)
            for number, split in enumerate((Split.TRAIN, Split.TEST, Split.TEST))
        ]
    )


def settings_of(text: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads("".join(line for line in text.splitlines() if not line.startswith("#")))
    return data["mcpServers"]["envgym"]  # type: ignore[no-any-return]  # JSON


def test_the_settings_of_an_mcp_client_start_a_server(out: Any) -> None:
    mcp = pytest.importorskip("mcp")
    text = out("connect", "mcp", COUNTER, "--set", "max_turns=1")
    server = settings_of(text)
    assert (server["command"], server["cwd"]) == ("envgym", str(Path.cwd()))

    async def play() -> None:
        async with mcp.Client(started(server["args"])) as client:
            await client.call_tool("episode_start", {"seed": 0})
            result = await client.call_tool("episode_say", {"text": "hello"})
            assert result.structured_content["ending"] == "TRUNCATED_TURNS"

    asyncio.run(play())


@pytest.mark.parametrize("name", ["openenv", "mcp"])
def test_the_command_of_a_server_is_one(name: str, out: Any) -> None:
    setting = "render_mode='ansi'"
    text = out("connect", name, COUNTER, "--set", setting)
    (line,) = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   envgym serve")]
    words = shlex.split(line)
    args = build_parser("serve").parse_args(words[1:])
    assert (args.protocol, args.envs, args.settings) == (name, [COUNTER], [setting])


@pytest.mark.parametrize(
    "words, number",
    [(("math/arithmetic-v0", "--set", "level=2"), 1000), (("tests.support.toys:Sums",), None)],
)
def test_the_program_for_trl_is_of_the_env(words: tuple[str, ...], number: int | None, out: Any) -> None:
    text = out("connect", "trl", *words)
    ast.parse(text)
    assert f'environment("{words[0]}"' in text
    assert ("settings={'level': 2}" in text) == ("--set" in words)
    rows = int(text.partition("env.dataset(")[2].partition(")")[0])
    assert rows == number if number is not None else 0 < rows < 1000


@pytest.mark.parametrize("name", ["skyrl", "verl"])
def test_the_class_for_a_project_is_that_of_the_example_and_its_rows_are_written(
    name: str, out: Any, folder: Path
) -> None:
    text = out("connect", name, COUNTER, "--set", "max_turns=3")
    ast.parse(text)
    program = (ROOT / f"examples/connect_{name}.py").read_text(encoding="utf-8")
    assert text.endswith(program.rstrip("\n") + "\n")
    commands = [shlex.split(line.removeprefix("#   ")) for line in text.splitlines() if line.startswith("#   envgym")]
    for words, split in zip(commands, ("train", "test"), strict=True):
        number = words[words.index("--rows") + 1]
        shown = out(*(word if word != number else "3" for word in words[1:]))
        assert f"3 rows of {COUNTER}, split {split}" in shown
        assert (folder / words[-1]).stat().st_size


@pytest.mark.parametrize(
    "words, number",
    [(("math/arithmetic-v0", "--set", "level=2"), 8), (("tests.support.toys:Sums",), 8)],
)
def test_the_command_for_verifiers_is_of_the_env(words: tuple[str, ...], number: int, out: Any) -> None:
    (line,) = [line for line in out("connect", "verifiers", *words).splitlines() if not line.startswith("#")]
    name, taskset, *options = shlex.split(line)
    values = dict(zip(options, [*options[1:], ""], strict=True))
    assert (name, taskset) == ("vf-eval", "envgym_verifiers")
    assert (values["--env.taskset.env"], values["-n"]) == (words[0], str(number))
    assert json.loads(values.get("--env.taskset.settings", "{}")) == ({"level": 2} if "--set" in words else {})


def test_rows_replace_an_existing_file_only_if_told(out: Any, command: Command, folder: Path) -> None:
    words = ("connect", "verl", COUNTER, "--rows", "2", "--out", "rows.jsonl")
    (folder / "rows.jsonl").write_text("mine")
    code, _, error = command(*words)
    assert (code, (folder / "rows.jsonl").read_text()) == (2, "mine")
    assert (
        "file of rows must be a new file, got rows.jsonl (task_rows); choose another file, or pass --overwrite" in error
    )
    assert "holds 2 rows" in out(*words, "--overwrite")


class HeldOut(Counter):
    """Its tasks are all held out."""

    tasks = ListTasks([Task(id="0", prompt="Count.", payload={"target": 1}, split=Split.TEST)])

    def __init__(self, *, when: object = None) -> None:
        super().__init__()


HELD_OUT = f"{__name__}:HeldOut"


def test_the_command_for_verifiers_has_a_split_with_tasks(out: Any) -> None:
    words = shlex.split(out("connect", "verifiers", HELD_OUT), comments=True)
    values = dict(pairwise(words))
    assert (values["--env.taskset.split"], values["-n"]) == ("test", "1")


@pytest.mark.parametrize("name", ["skyrl", "verl"])
@pytest.mark.parametrize("env_id, counts", [(FEW, [1, 2]), (HELD_OUT, [1])])
@pytest.mark.usefixtures("folder")
def test_the_commands_for_rows_ask_for_no_more_than_there_are(
    name: str, env_id: str, counts: list[int], out: Any
) -> None:
    text = out("connect", name, env_id)
    commands = [shlex.split(line.removeprefix("#   ")) for line in text.splitlines() if line.startswith("#   envgym")]
    for words, count in zip(commands, counts, strict=True):
        assert f"holds {count} rows" in out(*words[1:])


@pytest.mark.parametrize("env_id, limit", [("math/arithmetic-v0", 20), (FEW, 2)])
def test_the_command_for_inspect_names_the_env(env_id: str, limit: int, out: Any) -> None:
    words = shlex.split(out("connect", "inspect", env_id, "--set", "max_turns=3"), comments=True)
    assert words[:3] == ["inspect", "eval", "envgym/env"]
    values = [words[i + 1] for i, word in enumerate(words) if word == "-T"]
    assert values == [f"env={env_id}", "split=test", f"limit={limit}", 'settings={"max_turns": 3}']


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("tlr", COUNTER), "NAME"),
        (("trl",), "ENV"),
        (("trl", "puzzles/guess_numbr-v0"), "did you mean puzzles/guess_number-v0"),
        (("mcp", COUNTER, "--set", "turns=3"), "'turns'"),
        (("inspect", COUNTER, "--set", "turns=3"), "'turns'"),
        (("openenv", COUNTER, "--set", "max_turns=0"), "max_turns must be at least 1"),
        (("verifiers", HELD_OUT, "--set", "when=2024-01-01"), "settings must be JSON, got Object of type date"),
        (("inspect", HELD_OUT, "--set", "when=2024-01-01"), "settings must be JSON, got Object of type date"),
        (("verifiers", COUNTER, "--set", "max_turns=0"), "max_turns must be at least 1"),
        (("trl", "tests.envgym.connect.test_trl:Changing"), "every task must have the tools of the first task"),
        (("skyrl", "puzzles/guess_numbr-v0"), "did you mean puzzles/guess_number-v0"),
        (("trl", COUNTER, "--rows", "2"), "--rows must be used with skyrl or verl, got trl"),
        (("verl", COUNTER, "--rows", "2"), "--rows and --out must be given together, got no --out"),
        (("verl", COUNTER, "--split", "test"), "--rows and --out must be given together, got no --rows"),
        (("verl", COUNTER, "--rows", "2", "--out", "rows.csv"), "must end in .parquet or .jsonl, got rows.csv"),
        (("verl", COUNTER, "--rows", "0", "--out", "rows.jsonl"), "rows must lie in 1 to"),
        (
            ("trl", CONFLICTING, "--set", "tool_name=reset"),
            "name of a tool must not be",
        ),
        (
            ("openenv", CONFLICTING, "--set", "tool_name=reset"),
            "must have no tool named",
        ),
    ],
)
def test_what_cannot_be_connected_is_refused_in_one_sentence(
    words: tuple[str, ...], sentence: str, command: Command
) -> None:
    code, shown, error = command("connect", *words)
    assert (code, shown) == (2, "")
    assert sentence in error
