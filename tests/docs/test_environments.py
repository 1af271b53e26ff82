"""The page of environments shows each one that ships, with an episode; `scripts/environment_pages.py` writes it."""

import re
import shutil
from pathlib import Path

import pytest

import envgym
from envgym.errors import EnvgymError
from envgym.registry import find
from scripts import environment_pages
from tests.support.lanes import marks_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
IDS = [env_id for env_id in envgym.list_ids() if find(env_id).origin == "envgym"]


def marks_of_page(env_id: str) -> list[pytest.MarkDecorator]:
    """Return the lane that has what an environment needs to be shown; pages of the web are drawn by a browser."""
    return [pytest.mark.web] if env_id.startswith("web/") else marks_of(env_id)


@pytest.mark.parametrize("env_id", [pytest.param(env_id, marks=marks_of_page(env_id)) for env_id in IDS])
def test_page_shows_the_episode_of_the_oracle(env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_pages, "IMAGES", shutil.copytree(ROOT / "docs" / "images", tmp_path / "images"))
    told = f"run `python scripts/environment_pages.py {env_id}`"
    assert f"| [`{env_id}`](#{env_id.replace('/', '')}) | {find(env_id).summary} |" in PAGE, told
    shown = environment_pages.sections_of(PAGE)[env_id]
    assert "[TERMINATED, reward 1]\n````" in shown, told
    try:
        played = environment_pages.section(env_id)
    except EnvgymError as error:
        pytest.skip(str(error))  # its packages, or the sandbox, are not here
    assert shown == played, told


def test_pictures_are_there_and_small() -> None:
    images = re.findall(r"!\[[^\]]+\]\((images/[^)]+)\)", PAGE)
    assert images == ["images/miniwob.png", "images/shop.png"]
    assert max((ROOT / "docs" / name).stat().st_size for name in images) < 100_000


def test_page_is_in_the_navigation_and_names_no_machine() -> None:
    assert "environments.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not re.search(r"/(?:work|root|home)/", PAGE)
