"""What tests ask of the project's source files, each of which is read once per process."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED_ROOMS = ("envs", "agents", "trainer")
ROOMS = ("envgym", *LINKED_ROOMS)
FOLDERS = (*ROOMS, "tests", "examples", "benchmarks", "scripts")
_DATA = "envs/code/data/"
"""Repositories that agents work on: no sources of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A class or a function."""

    name: str
    line: int
    num_lines: int
    is_class: bool
    is_top_level: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, without its syntax tree: trees of all files are too many objects to keep."""

    path: str
    """From the root of the project."""
    num_lines: int
    has_docstring: bool
    definitions: tuple[Definition, ...]
    variables: frozenset[str]
    """Arguments, and fields or variables with an annotation."""
    imports: frozenset[str]
    """Names imported from envgym, inside functions too; for type checkers alone, not."""
    messages: tuple[tuple[int, str], ...]
    """Line and text of every string of several words that is no docstring; of an f-string, its constant parts."""

    @property
    def folder(self) -> str:
        """The top-level folder."""
        return self.path.partition("/")[0]

    @property
    def is_data(self) -> bool:
        """True for what agents work on."""
        return self.path.startswith(_DATA)

    @property
    def module(self) -> str:
        """The import name of a file of a room."""
        name = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return name if self.folder == "envgym" else f"envgym.{name}"


@cache
def sources(folder: str) -> tuple[Source, ...]:
    """Return the files of a top-level folder."""
    return tuple(_read(path) for path in sorted((ROOT / folder).rglob("*.py")))


def _read(path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    top_level = set(tree.body)
    for_checkers = (node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    unused = {inner for node in for_checkers for inner in ast.walk(node)}
    return Source(
        path=path.relative_to(ROOT).as_posix(),
        num_lines=len(text.splitlines()),
        has_docstring=bool(ast.get_docstring(tree)),
        definitions=tuple(
            Definition(
                name=node.name,
                line=node.lineno,
                num_lines=(node.end_lineno or node.lineno) - node.lineno + 1,
                is_class=isinstance(node, ast.ClassDef),
                is_top_level=node in top_level,
            )
            for node in nodes
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        variables=frozenset(name for node in nodes for name in _variables(node)),
        imports=frozenset(name for node in nodes if node not in unused for name in _imports(node)),
        messages=tuple(_messages(nodes)),
    )


def _messages(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Constant) or node in docstrings:
            continue
        if isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def _variables(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envgym"):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("envgym"))
