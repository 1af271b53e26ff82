"""Rules that no other tool holds: links, name guards, sizes, docstrings, import circles, what an import loads."""

import graphlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.support.sources import FOLDERS, LINKED_ROOMS, ROOMS, ROOT, sources

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_CLASS_LINES = 300


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


def check_no_circle(imports: Mapping[str, Iterable[str]]) -> None:
    """Refuse a circle, given the imported names of each module. Raises: graphlib.CycleError: shows the circle."""
    graph: dict[str, set[str]] = {}
    for module, names in imports.items():
        graph[module] = {name if name in imports else name.rpartition(".")[0] for name in names} - {module}
    graphlib.TopologicalSorter(graph).prepare()


def test_no_modules_import_each_other_in_a_circle() -> None:
    check_no_circle({source.module: source.imports for room in ROOMS for source in sources(room)})


def test_no_modules_name_each_other_in_a_circle_for_type_checkers_either() -> None:
    check_no_circle({source.module: source.module_imports for folder in FOLDERS for source in sources(folder)})


def test_imports_for_type_checkers_are_read_apart() -> None:
    (package,) = (source for source in sources("envgym") if source.module == "envgym")
    assert "envgym.api.train" in package.module_imports - package.imports


@pytest.mark.parametrize("folder", FOLDERS)
def test_modules_keep_the_limits_of_size(folder: str) -> None:
    too_long: list[str] = []
    for source in sources(folder):
        if source.num_lines > MAX_MODULE_LINES:
            too_long.append(f"{source.path} has {source.num_lines} lines, at most {MAX_MODULE_LINES}")
        for item in source.definitions:
            limit = MAX_CLASS_LINES if item.is_class else MAX_FUNCTION_LINES
            if item.num_lines > limit:
                too_long.append(f"{source.path}:{item.line} {item.name} has {item.num_lines} lines, at most {limit}")
    assert not too_long, "\n".join(too_long)


@pytest.mark.parametrize("folder", FOLDERS)
def test_modules_have_a_docstring(folder: str) -> None:
    without = [source.path for source in sources(folder) if not source.has_docstring]
    assert not without, f"modules must say what they own and what they must not know: {without}"


def test_fuzz_tests_lie_where_their_lane_looks_for_them() -> None:
    mark = "pytest.mark." + "fuzz"
    elsewhere = [
        source.path
        for source in sources("tests")
        if mark in (ROOT / source.path).read_text() and not Path(source.path).name.startswith("test_fuzz")
    ]
    assert not elsewhere, "a fuzz test must lie in a file test_fuzz*.py"
