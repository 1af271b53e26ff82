"""Documents name files and modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {path.resolve() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))} - {ROOT / "CHANGELOG.md"}
)
ROOMS = ("envgym", "envs", "agents", "trainer", "tests", "examples", "benchmarks", "scripts", "docker")
EXAMPLES = {"envs/x.py", "envgym/envs/x.py"}
"""Files of your own, in instructions."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8")))
    assert sorted(name for name in named - EXAMPLES if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    missing = []
    for name in set(re.findall(r"`(envgym(?:\.\w+)+)`", page.read_text(encoding="utf-8"))):
        path = ROOT / name.replace(".", "/")
        places = (path, path.with_suffix(".py"), path.parent.with_suffix(".py"), path.parent / "__init__.py")
        if not any(place.exists() for place in places):
            missing.append(name)
    assert missing == []
