"""The house rules that no other tool holds: links, name guards, sizes, docstrings, what importing envgym loads."""

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED_ROOMS = ("envs", "agents", "trainer")
FOLDERS = ("envgym", *LINKED_ROOMS, "tests", "examples", "benchmarks", "scripts")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in SOURCES}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_CLASS_LINES = 200


def run_python(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("room", LINKED_ROOMS)
def test_room_is_a_relative_link_to_the_folder_beside_envgym(room: str) -> None:
    link = ROOT / "envgym" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"
    assert link.resolve() == ROOT / room
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("room", LINKED_ROOMS)
def test_git_tracks_a_room_once_under_its_real_path(room: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "--stage", f"envgym/{room}"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    (entry,) = listing.stdout.splitlines()
    assert entry.startswith("120000 "), "the mode of a symbolic link"


@pytest.mark.parametrize("room", LINKED_ROOMS)
def test_room_refuses_to_be_imported_by_its_short_name(room: str) -> None:
    result = run_python(f"import {room}")
    assert result.returncode != 0
    assert f"ImportError: '{room}' must be imported by its full name" in result.stderr
    assert f"use 'envgym.{room}'" in result.stderr


def test_rooms_import_from_any_folder(tmp_path: Path) -> None:
    result = run_python("import envgym.envs, envgym.agents, envgym.trainer", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_importing_envgym_and_its_rooms_imports_no_heavy_package() -> None:
    heavy = {"torch", "transformers", "datasets", "pyarrow", "scipy", "pandas", "matplotlib", "sympy", "reasoning_gym"}
    result = run_python(
        f"import sys, envgym, envgym.envs, envgym.agents, envgym.trainer\nprint(sorted({heavy!r} & set(sys.modules)))"
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def module_name(path: str) -> str:
    """Return the import name of a file of one of the rooms."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.split(".")[0] == "envgym" else f"envgym.{name}"


def imported_names(tree: ast.Module) -> set[str]:
    """Return what a module imports of envgym, inside functions and for type checkers too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envgym"):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("envgym")}
    return names


def test_no_modules_import_each_other_in_a_circle() -> None:
    rooms = ("envgym/", *(f"{room}/" for room in LINKED_ROOMS))
    modules = {module_name(path): tree for path, tree in TREES.items() if path.startswith(rooms)}
    graph: dict[str, set[str]] = {}
    for name, tree in modules.items():
        found = {imported if imported in modules else imported.rpartition(".")[0] for imported in imported_names(tree)}
        graph[name] = found - {name}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which shows the circle


@pytest.mark.parametrize("name", TREES)
def test_module_keeps_the_house_limits(name: str) -> None:
    num_lines = len((ROOT / name).read_text().splitlines())
    assert num_lines <= MAX_MODULE_LINES, f"{name} has {num_lines} lines, at most {MAX_MODULE_LINES}"
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            limit = MAX_CLASS_LINES if isinstance(node, ast.ClassDef) else MAX_FUNCTION_LINES
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= limit, f"{name}:{node.lineno} {node.name} has {length} lines, at most {limit}"


@pytest.mark.parametrize("name", TREES)
def test_module_has_a_docstring(name: str) -> None:
    assert ast.get_docstring(TREES[name]), f"{name} must say what it owns and what it must not know"
