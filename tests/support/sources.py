"""What tests ask of the project's source files, each of which is read again only after it has changed."""

import ast
import os
import pickle
import zlib
from collections.abc import Iterator
from contextlib import suppress
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


_KEPT = ROOT / ".pytest_cache" / "sources" / f"{zlib.crc32(Path(__file__).read_bytes()):08x}"
"""Folder of what this version of the module has read, a file for each folder of sources: workers read it from there."""
_Entries = dict[str, tuple[tuple[int, int], Source]]
"""Path -> time of change and size of the file, and what was read of it."""


@cache
def sources(folder: str) -> tuple[Source, ...]:
    kept = _KEPT / folder
    known: _Entries = pickle.loads(kept.read_bytes()) if kept.exists() else {}
    entries: _Entries = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        stamp = (path.stat().st_mtime_ns, path.stat().st_size)
        entry = known.get(str(path))
        entries[str(path)] = entry if entry is not None and entry[0] == stamp else (stamp, _read(path))
    if entries != known:
        with suppress(OSError):  # the checkout cannot be written to
            _KEPT.mkdir(parents=True, exist_ok=True)
            draft = kept.with_name(f"{folder}.{os.getpid()}")
            draft.write_bytes(pickle.dumps(entries))
            draft.replace(kept)
    return tuple(source for _, source in entries.values())


def _read(path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text)
    definitions: list[Definition] = []
    variables, imports, module_imports = set[str](), set[str](), set[str]()
    docstrings: list[str] = []
    messages: list[tuple[int, str]] = []
    waiting: list[tuple[ast.AST, ast.AST, bool, bool]] = [(tree, tree, False, False)]
    while waiting:  # one pass, since a walk takes longer than what is read of a node
        node, parent, in_function, for_checkers = waiting.pop()
        match node:
            case ast.Attribute() | ast.Name(ctx=ast.Load()):  # most nodes
                pass
            case ast.Constant(value=str(value)):
                if not isinstance(parent, ast.Expr) and " " in value.strip():
                    messages.append((node.lineno, value))
            case ast.Name(ctx=ast.Store()):
                variables.add(node.id)
            case ast.arg():
                variables.add(node.arg)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                definitions.append(_definition(node, is_top_level=parent is tree))
                docstrings.append((ast.get_docstring(node, clean=False) or "").strip().partition("\n")[0])
                in_function = in_function or not isinstance(node, ast.ClassDef)
            case ast.If():
                for_checkers = for_checkers or ast.unparse(node.test) == "TYPE_CHECKING"
            case ast.Import() | ast.ImportFrom():
                names = set(_imports(node))
                imports |= set() if for_checkers else names
                module_imports |= set() if in_function else names
        for value in vars(node).values():
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                    waiting.append((child, node, in_function, for_checkers))
    return Source(
        path=path.relative_to(ROOT).as_posix(),
        num_lines=len(text.splitlines()),
        has_docstring=bool(ast.get_docstring(tree)),
        definitions=tuple(definitions),
        variables=frozenset(variables),
        imports=frozenset(imports),
        module_imports=frozenset(module_imports),
        docstrings=tuple(docstrings),
        messages=tuple(messages),
    )


def _definition(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, *, is_top_level: bool) -> Definition:
    return Definition(
        name=node.name,
        line=node.lineno,
        num_lines=(node.end_lineno or node.lineno) - node.lineno + 1,
        is_class=isinstance(node, ast.ClassDef),
        is_top_level=is_top_level,
    )


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_ours(alias.name))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in FOLDERS
