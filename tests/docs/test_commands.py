"""Every command line in the documentation is one that the program understands."""

import shlex

import pytest

from envgym.cli.main import build_parser
from tests.support.pages import BLOCKS

LINES = [
    pytest.param(line, id=f"{block.page}: {line}")
    for block in BLOCKS
    if block.language == "bash"
    for line in block.commands
    if line.startswith("envgym ")
]


@pytest.mark.parametrize("line", LINES)
def test_command_line_is_understood_and_no_word_of_it_is_lost(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    values = vars(build_parser(name).parse_args([name, *words])).values()  # exits where it does not understand
    understood = {str(item) for value in values for item in (value if isinstance(value, list) else [value])}
    assert {word for word in words if not word.startswith("-")} <= understood


def test_there_are_lines_to_read() -> None:
    assert len(LINES) >= 15
