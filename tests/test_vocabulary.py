"""One name has one meaning: no public class is defined twice, and names that the field does not know stay away."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.sources import FOLDERS, ROOMS, sources

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


def words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


def test_no_public_class_name_is_defined_twice() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for source in (source for room in ROOMS for source in sources(room) if not source.is_data):
        for item in source.definitions:
            if item.is_class and item.is_top_level and not item.name.startswith("_"):
                modules[item.name].append(source.path)
    twice = [f"{name}: {', '.join(paths)}" for name, paths in sorted(modules.items()) if len(paths) > 1]
    assert not twice, "\n".join(twice)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_is_a_word_of_the_old_vocabulary(folder: str) -> None:
    banned: list[str] = []
    for source in (source for source in sources(folder) if not source.is_data):
        stem = Path(source.path).stem.lstrip("_")
        if words(stem) & BANNED_WORDS or (folder in ("envgym", "agents", "trainer") and stem in BANNED_MODULES):
            banned.append(f"{source.path}: the module's name")
        for name in sorted({item.name for item in source.definitions} | source.variables):
            if name.lstrip("_") in BANNED_NAMES or words(name) & BANNED_WORDS:
                banned.append(f"{source.path}: {name}")
    assert not banned, "names must be of the field, see CONTRIBUTING.md:\n" + "\n".join(banned)
