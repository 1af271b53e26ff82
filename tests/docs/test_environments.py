"""The page of environments shows each one that ships, with an episode; `scripts/environment_pages.py` writes it."""

import re
from pathlib import Path

import pytest

import envgym
from envgym.registry import find

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
IDS = [env_id for env_id in envgym.list_ids() if find(env_id).origin == "envgym"]


@pytest.mark.parametrize("env_id", IDS)
def test_page_shows_an_episode_that_earns_the_optimum(env_id: str) -> None:
    told = f"run `python scripts/environment_pages.py {env_id}`"
    assert f"| [`{env_id}`](#{env_id.replace('/', '')}) | {find(env_id).summary} |" in PAGE, told
    found = re.search(rf"^## `{env_id}`\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, told
    assert "\nenv:    " in found[1], told
    assert "\nagent:  " in found[1], told
    assert "[TERMINATED, reward 1]\n````" in found[1], told


def test_pictures_are_there_and_small() -> None:
    images = re.findall(r"!\[[^\]]+\]\((images/[^)]+)\)", PAGE)
    assert images == ["images/miniwob.png", "images/shop.png"]
    assert max((ROOT / "docs" / name).stat().st_size for name in images) < 100_000


def test_page_is_in_the_navigation_and_names_no_machine() -> None:
    assert "environments.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not re.search(r"/(?:work|root|home)/", PAGE)
