"""One name has one meaning: no public class is defined twice, and names that the field does not know stay away."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.sources import FOLDERS, ROOMS, ROOT, sources

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
VAGUE_NAMES = frozenset(
    {"asked", "chosen", "drawn", "found", "given", "held", "kept", "known", "made", "said", "shown", "told", "wanted"}
)
"""Names of variables that say that a value was obtained, not what it is."""
TERMS: Mapping[str, frozenset[str]] = {
    "trainer/methods/losses/dpo.py": frozenset({"chosen"}),
    "envgym/core/pairs.py": frozenset({"chosen"}),
    "envgym/export/preferences.py": frozenset({"chosen"}),
    "trainer/methods/pairs.py": frozenset({"chosen"}),
    "trainer/methods/protocols.py": frozenset({"kept"}),
}
"""File -> names that are terms of the field there: chosen and rejected answers, groups that a filter kept."""
BANNED_PHRASES: Mapping[str, str] = {
    r"conformance suite": "conformance check",
    r"as a settings file says": "from a YAML file",
    r"that do not read\b": "random baseline",
    r"\(zero variance\)": "zero reward variance",
    r"[Ss]ampler and trainer apart": "sampler-trainer log-prob mismatch",
    r"[Ss]mallest([ _]detectable)?[ _]effect": "minimum detectable effect (80 % power)",
    r"effect (that )?it can (find|see)": "minimum detectable effect (80 % power)",
    r"\b[Dd]rift\b": "context rewrites",
    r"[Cc]ontexts rendered anew": "context rewrites",
    r"\bbe at hand\b": "be available; CUDA is not available",
    r"\b(four|linked|other) rooms\b": "packages",
    r"the world said": "the environment ended it",
    r"[Hh]and case|hand-computed case": "worked example",
    r"stopped; go on with": "interrupted; continue with",
    r"^#+ What (it|this|they) says?$": "conclusions",
    r"^#+ What goes wrong$": "error messages",
    r"\b[Ll]ess (the|their|its) (group's |batch's )?mean\b": "minus the mean",
    r"\b[Ll]east sure\b": "most uncertain; of highest entropy",
    r"\b[Ll]ikeli(er|est)\b": "more probable; most probable",
    r"\bpaid alike\b": "zero reward variance; equal rewards",
    r"\banew\b": "again",
    r"\b[Mm]end(s|ed|ing)?\b": "fix",
    r"^go with |\bmust go with\b": "be used with",
    r"^be there$|\bmust be there\b": "be installed, or exist",
    r"\bsee to (it|the)\b": "make sure, or check",
    r"\btold apart\b|\bTold apart\b|cannot be told from": "differs significantly; does not differ significantly from",
    r"\bworse, .*\balike\b": "better, worse, unchanged",
    r"had all of them (failed|succeeded)": "counted as failures, counted as successes",
    r"\btrained anything\b": "updated the policy",
    r"(not begun here|did not begin)\b": "untrusted run; a run that this user did not start",
    r"vLLM died": "vLLM crashed",
    r"\bmeaned over\b": "averaged over",
    r"\b([Cc]rew|[Pp]urse|[Ww]arden|[Ll]essons?|[Tt]urnstile|[Ww]orkbench)\b": "see BANNED_NAMES",
}
"""Phrases that no page, help text, message or label of the report has -> what the field says instead."""

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


@pytest.mark.parametrize("room", ROOMS)
def test_variables_are_named_after_what_they_hold(room: str) -> None:
    vague = [
        f"{source.path}: {', '.join(sorted(names))}"
        for source in sources(room)
        if not source.is_data and (names := (source.variables & VAGUE_NAMES) - TERMS.get(source.path, frozenset()))
    ]
    assert not vague, "name the value, not that it was obtained:\n" + "\n".join(vague)


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_name_what_is_returned(room: str) -> None:
    vague = [
        f"{source.path}: {line}"
        for source in sources(room)
        if not source.is_data
        for line in source.docstrings
        if line.startswith("Return what ")
    ]
    assert not vague, "name the value that is returned:\n" + "\n".join(vague)


def prose() -> list[Path]:
    """Return what users read: pages, except generated lists; commands; plug-in summaries; report and viewer."""
    folders = (ROOT, ROOT / "docs", ROOT / "docs" / "results")
    pages = [path for folder in folders for path in folder.glob("*.md") if not path.is_symlink()]
    tables = ("envgym/config/tables.toml", "agents/tables.toml", "trainer/tables.toml", "trainer/recipes.yaml")
    catalogs = (ROOT / "envs/catalog.toml", *(ROOT / path for path in tables))
    scripts = (*(ROOT / "envgym/report/static/js").glob("*.js"), *(ROOT / "envgym/viewer/static/assets").glob("*.js"))
    spoken = (*(ROOT / "envgym/cli").glob("*.*"), *scripts, *catalogs)
    return [path for path in (*pages, *spoken) if path.name not in ("CHANGELOG.md", "papers.md", "environments.md")]


@pytest.mark.parametrize("phrase, standard", BANNED_PHRASES.items())
def test_what_users_read_is_in_the_words_of_the_field(phrase: str, standard: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in prose()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(phrase, line)
    ]
    found += [
        f"{source.path}:{number}: {text}"
        for source in (source for room in ("envgym", "agents", "trainer") for source in sources(room))
        for number, text in source.messages
        if re.search(phrase, text)
    ]
    assert not found, f"write {standard!r} instead:\n" + "\n".join(found)
