"""Write docs/papers.md from the rows in docs/papers/: which paper is which file, how far it is built, and its tests.

Run: python scripts/papers.py [--check]. A file `docs/papers/POINT.toml` is a section of the page, a table `[key]` of it
a row (`Row` has its keys; a row without a status is refused). `_named.toml` lists the papers whose status the page
states, `_own.toml` the names of our tables that come from no paper. With `--check` nothing is written: what is wrong is
printed, and the exit status is 1.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeGuard

from pydantic import Field, ValidationError

from envgym.agents.tables import KINDS as AGENT_KINDS
from envgym.config.settings import Settings, faults
from envgym.config.tables import KINDS as ENV_KINDS
from envgym.errors import SettingsError
from envgym.trainer.tables import KINDS as TRAINER_KINDS

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = ROOT / "docs" / "papers"
PAGE: Final = ROOT / "docs" / "papers.md"

KINDS: Final = {**ENV_KINDS, **AGENT_KINDS, **TRAINER_KINDS}
METHODS: Final = tuple(dict.fromkeys([*TRAINER_KINDS, "search", "answer_scorer", "value"]))
"""Kinds of which every name must have a row, or stand in `_own.toml`."""
TOOLS: Final = ("tracker", "demonstrations")
"""Kinds of the trainer that are no methods."""

_NAMED_IN_SETTINGS: Final = (
    re.compile(r"\b(?P<kind>\w+)\.name=(?P<name>[\w-]+)"),
    re.compile(r"\b(?P<kind>\w+): \{name: (?P<name>[\w-]+)"),
    re.compile(r"\b(?:objective\.)?(?P<kind>recipe|aggregation|kl_estimator)=(?P<name>[\w-]+)"),
)
_ARXIV: Final = re.compile(r"\d{4}\.\d{5}")
_INTRO: Final = """# Papers

Each row names a paper, its status, its files, its settings, its differences from the paper, and tests.
Files are relative to the repository's root. Settings are keys of a training configuration. `works` means that every
element of the paper's method is built, with the deviations that the row names. `part` means that the elements after
"Missing" are not built. The tests of a row name every plug-in of the row. `scripts/papers.py` writes this page from the
rows in `docs/papers/`.
"""
_STATUS_INTRO: Final = """## Status

Status of the papers that prove the plug-in points of the trainer. A paper is `part` if one of its rows is, and
`not built` without a row.
"""
_OWN_INTRO: Final = """## Without a paper
"""


class Row(Settings):
    """One row of the page."""

    paper: str
    """Name, a colon, and what is taken from it."""
    links: tuple[str, ...] = ()
    """arXiv ids and addresses; none: our own."""
    files: tuple[str, ...] = Field(min_length=1)
    """Files or folders that hold it."""
    settings: str
    """What a configuration says, in backticks; `kind.name=NAME` and `recipe=NAME` are looked up in our tables."""
    plugins: tuple[str, ...] = ()
    """`kind.NAME` of our tables that `settings` does not spell like that."""
    deviations: str
    """Where ours differs from the paper, or `none`."""
    status: Literal["works", "part"]
    """`works`: the paper's method is whole; `part`: an element of it is missing."""
    missing: str = ""
    """The elements of the paper that are not built, in a sentence; only of status `part`."""
    tests: tuple[str, ...] = Field(min_length=1)
    """`tests/PATH.py::test_name` of the tests that show it; together they name every plug-in of the row."""

    def named(self) -> set[tuple[str, str]]:
        """Return kind and name of every plug-in that the row is about."""
        plugins = {
            (match["kind"], match["name"]) for form in _NAMED_IN_SETTINGS for match in form.finditer(self.settings)
        }
        return plugins | {(kind, name) for kind, _, name in (plugin.partition(".") for plugin in self.plugins)}

    def answers(self, name: str) -> bool:
        """Return whether the row is about a paper: its own `paper` begins with the name."""
        return re.match(rf"{re.escape(name)}(?![\w+*-])", self.paper, re.IGNORECASE) is not None


Sections = Mapping[str, Mapping[str, Row]]
"""Stem of a file -> key -> row."""


def main() -> int:
    """Write the page, or say what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, print what is wrong")
    arguments = parser.parse_args()
    try:
        sections = read_rows()
    except SettingsError as error:
        print(error)
        return 1
    wrong = [*faults_of(sections), *missing(sections)]
    page = render(sections)
    if not arguments.check:
        PAGE.write_text(page, encoding="utf-8")
    elif page != PAGE.read_text(encoding="utf-8"):
        wrong.append("docs/papers.md must be what its rows say: run `python scripts/papers.py`")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


def read_rows() -> Sections:
    """Read all rows. Raises: SettingsError: a key is missing, unknown or of another type."""
    return {path.stem: dict(_rows_of(path)) for path in sorted(ROWS.glob("[!_]*.toml"))}


def _rows_of(path: Path) -> Iterator[tuple[str, Row]]:
    for key, data in tomllib.loads(path.read_text(encoding="utf-8")).items():
        try:
            yield key, Row.model_validate(data)
        except ValidationError as error:
            raise SettingsError("\n".join(faults(Row, error, where=f"{path.name} [{key}]"))) from None


def faults_of(sections: Sections) -> list[str]:
    """Return the names in rows that do not exist: files, tests, and names of our tables."""
    return [
        f"docs/papers/{section}.toml [{key}]: {fault}"
        for section, rows in sections.items()
        for key, row in rows.items()
        for fault in _faults_of_row(row)
    ]


def _faults_of_row(row: Row) -> Iterator[str]:
    for file in row.files:
        if not (ROOT / file).exists():
            yield f"files must exist, got {file}"
    for test in row.tests:
        if not is_test(test):
            yield f"tests must be tests/PATH.py::test_name of a test that exists, got {test}"
    if (row.status == "part") != bool(row.missing):
        yield f"missing must be given with status part only, got {row.missing!r} with {row.status}"
    has_tests = all(map(is_test, row.tests))
    named_in_tests = frozenset[str]().union(*map(names_in, row.tests)) if has_tests else frozenset[str]()
    for kind, name in sorted(row.named()):
        if kind not in KINDS or name not in KINDS[kind].table:
            yield f"plug-ins must be in a table, got {kind}.name={name}"
        elif has_tests and not named_in_tests & _names_of_plugin(kind, name):
            yield f"tests must name every plug-in of the row, got none that names {kind}.name={name}"


def _names_of_plugin(kind: str, name: str) -> set[str]:
    """Return the words by which a test names a plug-in: its name, its class, or for recipes their whole table."""
    return {name, KINDS[kind].table[name].rpartition(":")[2], *(["RECIPE"] if kind == "recipe" else [])}


@cache
def names_in(test: str) -> frozenset[str]:
    """Return the names and texts in a test and in what its file defines for all tests."""
    path, _, name = test.partition("::")
    parts = [part for part in _tree_of(path).body if not isinstance(part, ast.Import | ast.ImportFrom)]
    shared = [
        part for part in parts if not (_is_function(part) and part.name.startswith("test_") and part.name != name)
    ]
    words: set[str] = set()
    for node in (node for part in shared for node in ast.walk(part)):
        match node:
            case (
                ast.Name(id=word)
                | ast.Attribute(attr=word)
                | ast.keyword(arg=str(word))
                | ast.Constant(value=str(word))
            ):
                words.add(word)
    return frozenset(words)


@cache
def _tree_of(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def _is_function(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def is_test(test: str) -> bool:
    """Return whether `tests/PATH.py::test_name` is a function of that file."""
    path, _, name = test.partition("::")
    if not name.startswith("test_") or not (ROOT / path).is_file():
        return False
    return any(_is_function(node) and node.name == name for node in _tree_of(path).body)


def missing(sections: Sections) -> list[str]:
    """Return which names of our tables have no row and are not marked as our own, and which are marked in vain."""
    refs = {plugin for rows in sections.values() for row in rows.values() for plugin in row.named()}
    own = {(kind, name) for kind, names in _read_own().items() for name in names}
    ours = {(kind, name) for kind in METHODS if kind not in TOOLS for name in KINDS[kind].table}
    lost = [f"{kind} {name} must have a row in docs/papers/, or stand in _own.toml" for kind, name in ours - refs - own]
    vain = [
        f"_own.toml must name what a table has and no row, got {kind}.{name}" for kind, name in own & refs | own - ours
    ]
    return sorted(lost) + sorted(vain)


def _read_own() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((ROWS / "_own.toml").read_text(encoding="utf-8"))


def render(sections: Sections) -> str:
    """Write the page."""
    parts = [_INTRO, *(_section(name, list(rows.values())) for name, rows in sections.items())]
    own = [f"| `{kind}.name={name}` | {what} |" for kind, names in _read_own().items() for name, what in names.items()]
    parts += [_OWN_INTRO, _table(("name", "what it is"), own), _STATUS_INTRO, _status(sections)]
    return "\n".join(parts)


def _section(name: str, rows: Sequence[Row]) -> str:
    lines = [
        f"| {row.paper}{_links(row.links)} | {row.status} | {_code(row.files)} | {row.settings} | {_deviations(row)} "
        f"| {_code(dict.fromkeys(test.partition('::')[0] for test in row.tests))} |"
        for row in rows
    ]
    title = name.replace("_", " ").capitalize()
    return f"## {title}\n\n{_table(('paper', 'status', 'files', 'settings', 'deviations', 'tests'), lines)}"


def _deviations(row: Row) -> str:
    return f"{row.deviations}. Missing: {row.missing}" if row.missing else row.deviations


def _links(links: Sequence[str]) -> str:
    written = (
        f"[{link}](https://arxiv.org/abs/{link})" if _ARXIV.fullmatch(link) else f"[{link.split('/')[2]}]({link})"
        for link in links
    )
    return f" ({', '.join(written)})" if links else ""


def _code(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _status(sections: Sections) -> str:
    lines = []
    rows = [(section, row) for section, table in sections.items() for row in table.values()]
    for seam, papers in tomllib.loads((ROWS / "_named.toml").read_text(encoding="utf-8")).items():
        for name, link in papers.items():
            answers = [(section, row) for section, row in rows if row.answers(name)]
            part = any(row.status == "part" for _, row in answers)
            status = "not built" if not answers else "part" if part else "works"
            where = dict.fromkeys(
                f"[{section.replace('_', ' ')}](#{section.replace('_', '-')})" for section, _ in answers
            )
            tests = sum(len(row.tests) for _, row in answers)
            lines.append(
                f"| {seam} | {name}{_links((link,) if link else ())} | {status} | {', '.join(where)} | {tests} |"
            )
    return _table(("seam", "paper", "status", "rows under", "tests named"), lines)


def _table(header: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
