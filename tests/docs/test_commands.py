"""Every command line in the documentation is one that the program understands."""

import re
import shlex
from pathlib import Path

import pytest

from envgym.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def command_lines(page: Path) -> list[str]:
    """Return the lines of a page's shell blocks that call envgym."""
    shell = re.findall(r"^```(?:bash|sh|console)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    commands = [re.split(r" (?:#|>|&&)", line)[0].strip() for block in shell for line in block.splitlines()]
    return [line.removeprefix(".venv/bin/") for line in commands if re.match(r"(\.venv/bin/)?envgym ", line)]


LINES = [pytest.param(line, id=f"{page.name}: {line}") for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize("line", LINES)
def test_command_line_is_understood_and_no_word_of_it_is_lost(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    values = vars(build_parser(name).parse_args([name, *words])).values()  # exits where it does not understand
    understood = {str(item) for value in values for item in (value if isinstance(value, list) else [value])}
    assert {word for word in words if not word.startswith("-")} <= understood


def test_there_are_lines_to_read() -> None:
    assert len(LINES) >= 15
