"""Dependencies: locks agree with constraints, licences are named, and the GPL comes by choice alone."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BY_NAME = ("vllm", "textarena", "inspect", "mlflow", "trackio", "wandb")
"""Extras that `all` does not bring."""
GROUPS: Mapping[str, list[str]] = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))
GPL = re.compile(r"\bA?GPL|GNU (?:Affero )?General Public")
NAMES = {
    "MIT": "MIT",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache-2.0": "Apache-2.0",
    "BSD-3-Clause": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "LGPL-2.0-or-later": "LGPL-2.0-or-later",
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
}
"""What metadata say -> SPDX."""


def pins(text: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", text, re.MULTILINE)
    assert len(found) == len(dict(found))
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.name)
def test_a_lock_has_the_versions_of_its_constraints_and_a_hash_for_each(path: Path) -> None:
    lock = path.with_suffix(".lock").read_text(encoding="utf-8")
    assert pins(lock) == pins(path.read_text(encoding="utf-8")), "run `python scripts/lock_constraints.py`"
    for entry in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]:
        first, *hashes = entry.replace("\\\n", "").split()
        assert "==" in first
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", item) for item in hashes), first
    assert "://" not in lock, "a lock names no index"


def test_constraints_of_an_image_pin_what_it_installs_within_bounds() -> None:
    pinned = pins((ROOT / "docker" / "train" / "constraints.txt").read_text(encoding="utf-8"))
    dockerfile = (ROOT / "docker" / "train" / "Dockerfile").read_text(encoding="utf-8")
    extras = re.findall(r"^ARG EXTRAS=(\S+)", dockerfile, re.MULTILINE)[0].split(",")
    for wanted in map(Requirement, (*GROUPS["core"], *(item for extra in extras for item in GROUPS[extra]))):
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), wanted
    tested = pins((ROOT / "constraints" / "core.txt").read_text(encoding="utf-8"))
    others = {name for name in tested.keys() & pinned.keys() if tested[name] != pinned[name]}
    assert others == {"fastapi", "numpy", "setuptools", "z3-solver"}, "vLLM asks for older ones; all else is as tested"


def rows() -> dict[str, tuple[str, str]]:
    """Return package -> (who asks, licence) of the page."""
    lines = re.findall(
        r"^\| ([\w.-]+) \| ([^|]+) \| ([^|]+) \| [^|]*\|$", (ROOT / "THIRD_PARTY.md").read_text("utf-8"), re.M
    )
    return {name: (by, licence) for name, by, licence in lines if name != "package"}


def test_every_direct_dependency_is_listed_with_who_asks_for_it() -> None:
    asked: dict[str, list[str]] = {}
    for group, requirements in GROUPS.items():
        for item in map(Requirement, requirements):
            if item.name != PROJECT["name"]:
                asked.setdefault(item.name, []).append(group)
    listed = {name: by for name, (by, _) in rows().items() if not by.startswith(("by `--no-deps`", "lane "))}
    assert listed == {name: ", ".join(groups) for name, groups in asked.items()}


@pytest.mark.parametrize("name", sorted(rows()))
def test_a_licence_is_the_one_that_the_package_states(name: str) -> None:
    try:
        stated = metadata(name)
    except PackageNotFoundError:
        pytest.skip("not installed")
    licence = rows()[name][1]
    if "License-Expression" in stated:
        assert licence == stated["License-Expression"]
        return
    said = [stated["License"] or "", *(line.rpartition(":: ")[2] for line in stated.get_all("Classifier", []))]
    known = {NAMES[item] for item in said if item in NAMES}
    assert known <= {licence}, "the page says otherwise than the metadata"


def closure(requirements: Iterable[str]) -> Iterator[PackageMetadata]:
    """Yield the metadata of all that is installed of what requirements ask for, in turn."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        item = left.pop()
        key = (canonicalize_name(item.name), frozenset(item.extras))
        if key in seen or item.name == PROJECT["name"]:
            continue
        seen.add(key)
        try:
            found = distribution(item.name)
        except PackageNotFoundError:
            continue
        yield found.metadata
        nested = map(Requirement, found.requires or ())
        extras = ("", *item.extras)
        left += [
            one for one in nested if not one.marker or any(one.marker.evaluate({"extra": name}) for name in extras)
        ]


def test_no_extra_but_textarena_brings_a_package_under_the_gpl() -> None:
    chosen = [item for group, items in GROUPS.items() if group not in ("textarena", "dev") for item in items]
    found = {
        stated["Name"]
        for stated in closure(chosen)
        if any(
            GPL.search(text)
            for text in (
                stated["License-Expression"] or "",
                (stated["License"] or "")[:200],
                *stated.get_all("Classifier", []),
            )
        )
    }
    assert found == set()
    (everything,) = GROUPS["all"]
    assert set(Requirement(everything).extras) == GROUPS.keys() - {"core", "dev", "all", *BY_NAME}
    assert "chess" not in pins((ROOT / "constraints" / "core.txt").read_text(encoding="utf-8"))
