"""The page on sandboxes: its program runs, and its tables name what there is."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from envgym.sandbox import MIB, BwrapSandbox, Limits, RunEnding, why_unusable

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")
SHOWN = {"wall_s": "10", "cpu_s": "10", "processes": "64", "open_files": "256"} | {
    name: f"{getattr(Limits(), name) // MIB} MiB" for name in ("memory", "output", "disk")
}


def test_program_runs_and_shows_what_its_comments_say() -> None:
    reason = why_unusable(BwrapSandbox())
    if reason is not None:
        pytest.skip(reason)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, Any] = {}  # what the program names
    exec(program, space)
    done = space["done"]
    assert (done.stdout, done.exit_code, done.ending) == (b"7\n", 0, RunEnding.EXITED)
    assert space["twin"].run("x").output == "[1, 2]\n"
    space["twin"].close()


def test_tables_name_every_limit_with_its_default_and_every_ending() -> None:
    for item in fields(Limits):
        assert f"| `{item.name}` | {SHOWN[item.name]} |" in PAGE
    for ending in RunEnding:
        assert f"`{ending.value}`" in PAGE
