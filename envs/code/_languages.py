"""The languages of `code/stdio-v0`: one YAML file each in `languages/`, read when asked for."""

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml
from jinja2 import Environment
from pydantic import BaseModel, ConfigDict

from envgym.errors import check_known

_FOLDER = Path(__file__).with_name("languages")


class Language(BaseModel):
    """How a program in one language is compiled and run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    note: str = ""
    """What an agent must know besides."""
    needs: Sequence[str]
    """Programs that the sandbox must have."""
    file: str
    """Name of the file that holds the agent's program."""
    files: Mapping[str, str] = {}
    """Files beside it."""
    compile: Sequence[str] | None = None
    run: Sequence[str] | None = None
    """None: the Python that starts the tests runs the program itself, for each test in a fork of its own."""
    reads: str = ""
    """Regular expression that finds where a program reads its input; empty: it finds that everywhere."""
    lookup: str
    """Template of a program that looks the output of each of `cases` up: the oracle."""

    def program_of(self, cases: Sequence[Mapping[str, str]]) -> str:
        # A program is no HTML, and the template is ours: what it shows is quoted by the filters.
        environment = Environment(autoescape=False, keep_trailing_newline=True)
        environment.filters |= {"json": json.dumps, "shell": shlex.quote, "sql": _sql}
        return environment.from_string(self.lookup).render(cases=cases)


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def language(name: str) -> Language:
    """Return a language. Raises: UnknownName: there is no file for it; near names are listed."""
    check_known("language", name, names(), where="code/stdio-v0")
    return Language.model_validate(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def _sql(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
