"""Logs of processes: every line has its ids, foreign lines are no entries, and a trace joins the logs by time."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.cli.main import main
from envgym.errors import RunError
from envgym.runs.files import LOGS
from envgym.runtime.processes.log import (
    Ids,
    about,
    close_log,
    current_ids,
    line_of,
    log_event,
    open_log,
    read_line,
    read_trace,
)

GROUP = "step-000003/001"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / LOGS / "controller.jsonl"
    open_log(path, run="demo", role="controller")
    yield path
    close_log()


def entries(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        assert line.pop("time").endswith("Z")
    return lines


def test_lines_carry_the_ids_of_the_code_that_writes_them(log: Path) -> None:
    async def branch(number: int) -> None:
        with about(Ids(f"{GROUP}/02", number)):
            await asyncio.sleep(0)  # the other branch runs in between
            log_event("generate", tokens=number)

    async def both() -> None:
        await asyncio.gather(branch(0), branch(4))

    asyncio.run(both())
    log_event("learned", step=3)
    who = {"run": "demo", "role": "controller", "level": "INFO"}
    assert entries(log) == [
        {**who, "episode": f"{GROUP}/02", "branch": 0, "event": "generate", "tokens": 0},
        {**who, "episode": f"{GROUP}/02", "branch": 4, "event": "generate", "tokens": 4},
        {**who, "event": "learned", "step": 3},
    ]


def test_warnings_of_libraries_are_lines_too(log: Path) -> None:
    with about(Ids(GROUP)):
        logging.getLogger("somebody").warning("low on %s", "memory\x1b[31m")
    logging.getLogger("somebody").info("chatter")
    (line,) = entries(log)
    assert (line["level"], line["logger"], line["episode"]) == ("WARNING", "somebody", GROUP)
    assert line["message"] == "low on memory\x1b[31m"


def test_without_a_log_nothing_is_kept_or_written() -> None:
    with about(Ids("x", 1)):
        assert current_ids() == Ids()
        log_event("generate")


@given(st.text(max_size=200), st.none() | st.integers(0, 10**6))
def test_ids_survive_a_header(episode: str, branch: int | None) -> None:
    assert Ids.of_header(Ids(episode, branch).header()) == Ids(episode, branch)


@given(st.text() | st.none())
def test_any_header_is_read(text: str | None) -> None:
    found = Ids.of_header(text)
    assert isinstance(found.episode, str)


@pytest.mark.parametrize("text", ["", "[]", '["a"]', "[1, 2]", '["a", "b"]', "{}", "null", "[" * 10_000])
def test_headers_of_others_name_nothing(text: str) -> None:
    assert Ids.of_header(text) == Ids()


@pytest.mark.parametrize(
    "line", [b"", b"Segmentation fault", b"{}", b'{"time": 1, "role": "x"}', b"\xff", b'{"time": "2', b"[" * 60_000]
)
def test_bare_output_is_no_entry(line: bytes) -> None:
    assert read_line(line) is None


def write(run: Path, role: str, *lines: tuple[str, str, dict[str, object]]) -> None:
    folder = run / LOGS
    folder.mkdir(exist_ok=True, parents=True)
    with (folder / f"{role}.jsonl").open("a") as file:
        for time, episode, fields in lines:
            entry = json.loads(line_of("demo", role, "INFO", {"episode": episode, **fields}))
            file.write(json.dumps({**entry, "time": f"2026-01-01T00:00:{time}Z"}) + "\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with the logs of three processes; one was cut short."""
    (tmp_path / "run.json").write_text(json.dumps({"schema": 2, "name": "demo", "id": "a"}))
    write(
        tmp_path,
        "controller",
        ("01.000000", f"{GROUP}/00", {"branch": 0, "event": "reset", "seconds": 0.25}),
        ("04.500000", GROUP, {"event": "kept", "step": 3}),
        ("05.000000", "", {"event": "learned", "groups": [GROUP]}),
        ("06.000000", "", {"event": "learned", "groups": ["step-000004/001"]}),
    )
    write(tmp_path, "policy-server-0", ("02.000000", f"{GROUP}/00", {"branch": 0, "event": "generate"}))
    write(
        tmp_path,
        "env-server-0",
        ("03.000000", f"{GROUP}/00", {"event": "step"}),
        ("03.100000", f"{GROUP}0/00", {"event": "step"}),  # of group 0010
    )
    with (tmp_path / LOGS / "env-server-0.jsonl").open("a") as file:
        file.write('{"time": "2026-01-01T00:0')
    return tmp_path


def test_a_trace_joins_the_processes_by_time(run: Path) -> None:
    found = [(entry["role"], entry["event"]) for entry in read_trace(run, GROUP)]
    assert found == [
        ("controller", "reset"),
        ("policy-server-0", "generate"),
        ("env-server-0", "step"),
        ("controller", "kept"),
        ("controller", "learned"),
    ]
    assert len(read_trace(run, f"{GROUP}/00")) == 3


def test_command_prints_a_line_each(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(run), GROUP]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6
    assert printed[0] == "2026-01-01T00:00:01.000000Z  run demo"
    assert printed[1].split() == ["0.000", "s", "controller", f"{GROUP}/00", "branch", "0", "reset", "seconds=0.25"]
    assert printed[4].split() == ["3.500", "s", "controller", GROUP, "kept", "step=3"]
    assert main(["trace", str(run), GROUP, "--json"]) == 0
    assert [entry["event"] for entry in json.loads(capsys.readouterr().out)][1:3] == ["generate", "step"]


def test_unknown_groups_and_runs_without_logs_are_one_sentence(run: Path) -> None:
    with pytest.raises(RunError, match=rf"group must be in the logs, which have {GROUP} to {GROUP}0/00, got 'step-9'"):
        read_trace(run, "step-9")
    for path in (run / LOGS).iterdir():
        path.unlink()
    with pytest.raises(RunError, match="run must have logs of its processes, got none"):
        read_trace(run, GROUP)
