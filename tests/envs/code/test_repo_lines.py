"""Lines of hostile files: what is found is what splitting finds, and no list of its lines is held."""

import tracemalloc
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.envs.code import repo
from envgym.envs.code._repo_lines import MAX_LINE, count_lines, find_lines, read_lines
from envgym.envs.code.repo import MAX_HITS, Repositories
from envgym.errors import ToolError
from envgym.sandbox.shell import ShellSession

SMALL_TEXT = st.text(alphabet="ab \n\r\x0c\u2028é", max_size=40)


@given(content=SMALL_TEXT, text=st.text(alphabet="ab é", min_size=1, max_size=3))
def test_lines_are_those_between_line_feeds(content: str, text: str) -> None:
    lines = content.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    assert count_lines(content.encode()) == len(lines)
    assert read_lines(content.encode(), 2, 4) == [line.rstrip("\r") for line in lines[1:4]]
    expected = [number for number, line in enumerate(lines, 1) if text in line]
    assert [number for number, _ in find_lines(content.encode(), text.encode())] == expected


def test_a_long_line_is_shown_around_the_hit_and_no_character_is_cut() -> None:
    content = b"x\n" + "é".encode() * 3000 + b"here" + b"y" * 5000 + b"\n"
    ((number, line),) = find_lines(content, b"here")
    # 1000 bytes before the hit are 500 characters; then 4 + 996 bytes of what follows, 4004 of 6004 are left out
    assert (number, line) == (2, "é" * 500 + "here" + "y" * 996 + "... (4004 bytes more)")
    (shown,) = read_lines("é".encode() * 1500, 1, 1)
    assert shown == "é" * (MAX_LINE // 2) + "... (1000 bytes more)"
    (shown,) = read_lines(b"a" + "é".encode() * 1500, 1, 1)
    assert shown == "a" + "é" * 999 + "... (1002 bytes more)"
    with pytest.raises(UnicodeDecodeError):
        read_lines(b"a\xff" * MAX_LINE, 1, 1)


NUM_BYTES = 4 << 20
LONG_NAME = f"{'d' * 200}/{'e' * 200}"


@pytest.mark.parametrize("content", [b"a\n", b"\n", b"a", b"\xff", "a\U0001f600".encode(), b"a\r\x0c"])
def test_tools_take_less_memory_than_a_hostile_file_has_bytes_twice(content: bytes) -> None:
    shell = ShellSession({LONG_NAME: content * (NUM_BYTES // len(content))}, repo._LIMITS)
    env: Any = SimpleNamespace(state=SimpleNamespace(shell=shell))  # Any: the tools read the shell alone
    first = NUM_BYTES // len(content) // 2 if b"\n" in content else 1
    tracemalloc.start()
    try:
        found = Repositories.search(env, "a")
        with suppress(ToolError):  # it is not text
            Repositories.view(env, LONG_NAME, first=first)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.count("\n") <= MAX_HITS
    assert peak < 2 * NUM_BYTES, "a list of all lines takes up to 240 bytes for a byte of the file"
