"""What tests ask of the project's source files, each of which is read once per process."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED_ROOMS = ("envs", "agents", "trainer")
ROOMS = ("envgym", *LINKED_ROOMS)
FOLDERS = (*ROOMS, "envgym_verifiers", "tests", "examples", "studies", "benchmarks", "scripts")
_DATA = "envs/code/data/"
"""Repositories that agents work on: no sources of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
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
    """Arguments, fields and variables."""
    imports: frozenset[str]
    """Names imported from the project, in functions too, without those under `TYPE_CHECKING`."""
    module_imports: frozenset[str]
    """Names that the module imports from the project outside functions, with those under `TYPE_CHECKING`."""
    docstrings: tuple[str, ...]
    """First lines of the docstrings."""
    messages: tuple[tuple[int, str], ...]
    """Line and text of every string of several words that is no docstring; of an f-string, its constant parts."""

    @property
    def folder(self) -> str:
        return self.path.partition("/")[0]

    @property
    def is_data(self) -> bool:
        """True for what agents work on."""
        return self.path.startswith(_DATA)

    @property
    def module(self) -> str:
        name = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"envgym.{name}" if self.folder in LINKED_ROOMS else name


@cache
def sources(folder: str) -> tuple[Source, ...]:
    return tuple(_read(path) for path in sorted((ROOT / folder).rglob("*.py")))


def _read(path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    top_level = set(tree.body)
    for_checkers = (node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    unused = {inner for node in for_checkers for inner in ast.walk(node)}
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    in_functions = {inner for node in functions for inner in ast.walk(node)}
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
        module_imports=frozenset(name for node in nodes if node not in in_functions for name in _imports(node)),
        docstrings=tuple(_first_lines(nodes)),
        messages=tuple(_messages(nodes)),
    )


def _first_lines(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or "").partition("\n")[0]


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
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_ours(alias.name))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in FOLDERS
