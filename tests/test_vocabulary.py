"""One name has one meaning: no public class is defined twice, and names that the field does not know stay away."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("envgym", "envs", "agents", "trainer")
FOLDERS = (*ROOMS, "tests", "examples", "benchmarks", "scripts")
DATA = ROOT / "envs" / "code" / "data"

BANNED_NAMES = frozenset(
    {
        "Before",
        "Crew",
        "Grower",
        "Growing",
        "Grown",
        "Growth",
        "Hook",
        "Judged",
        "Kept",
        "LaidOut",
        "Lesson",
        "Lessons",
        "Link",
        "Lost",
        "Member",
        "Place",
        "Played",
        "Purse",
        "Recorded",
        "SampleRecord",
        "Seen",
        "Signal",
        "Turnstile",
        "Workbench",
        "World",
        "gives_up",
        "lay_out",
    }
)
BANNED_WORDS = frozenset({"crew", "elder", "lesson", "lessons", "purse", "turnstile", "warden", "workbench"})
"""Words that no class, function, argument, field or module is named with."""
BANNED_MODULES = frozenset({"drift", "growth", "judging", "opening", "points", "sampled", "seen", "world"})
"""Names of modules of the contract, the agents and the trainer that say nothing of what the module holds."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def sources(*folders: str) -> dict[str, ast.Module]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths if DATA not in path.parents
    }


TREES = sources(*FOLDERS)


def in_rooms(name: str) -> bool:
    return name.split("/")[0] in ROOMS


def classes(tree: ast.Module) -> list[str]:
    """Return the public classes that a module defines at its top level."""
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names of classes, functions, arguments and annotated fields of a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


def test_no_public_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in TREES.items():
        if in_rooms(module):
            for name in classes(tree):
                places[name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(modules)}" for name, modules in sorted(twice.items()))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_is_a_word_of_the_old_vocabulary(folder: str) -> None:
    found: list[str] = []
    for module, tree in TREES.items():
        if module.split("/")[0] != folder:
            continue
        stem = Path(module).stem.lstrip("_")
        if words(stem) & BANNED_WORDS or (folder in ("envgym", "agents", "trainer") and stem in BANNED_MODULES):
            found.append(f"{module}: the module's name")
        for name in sorted(defined_names(tree)):
            if name.lstrip("_") in BANNED_NAMES or words(name) & BANNED_WORDS:
                found.append(f"{module}: {name}")
    assert not found, "names must be of the field, see CONTRIBUTING.md:\n" + "\n".join(found)
