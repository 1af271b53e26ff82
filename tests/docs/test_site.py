"""The documentation site: it is built from what git has, and its search works where no server and no network is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from scripts import mkdocs_hooks as hooks
from scripts.environment_pages import sections_of
from tests.support.browser import BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def linked_files(page: Path) -> set[Path]:
    text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = (target for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text) if "://" not in target)
    return {Path(os.path.normpath(page.resolve().parent / target)) for target in targets}


def test_every_file_that_a_page_links_to_is_in_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    known = set(subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())
    folders = {str(parent) for name in known for parent in Path(name).parents}
    linked = {path.relative_to(ROOT).as_posix() for page in PAGES for path in linked_files(page)}
    assert len(linked) > 30
    assert sorted(linked - known - folders) == []


def test_each_environment_has_a_page_with_its_card_and_its_episode() -> None:
    source = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
    index, sections = hooks._environments_index(source), sections_of(source)
    assert set(re.findall(r"\]\((environments/[\w-]+)\.md\)", index)) == {hooks._page_of(env_id) for env_id in sections}
    assert "](#" not in index
    assert "\n## " not in index
    page = hooks._environment_page("web/shop-v0", sections["web/shop-v0"])
    assert page.startswith((ROOT / "envs/web/shop.md").read_text(encoding="utf-8").rstrip())
    assert "](../images/shop.png)" in page
    assert "[TERMINATED, reward 1]" in page


def build_site(folder: Path) -> Path:
    """Build two pages with the settings of the project's site, and return its first page."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings |= {"docs_dir": str(folder / "docs"), "site_dir": str(folder / "site"), "hooks": [], "nav": None}
    settings["plugins"] = [plugin for plugin in settings["plugins"] if isinstance(plugin, str)]  # no API pages
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    shutil.copytree(ROOT / "docs/javascripts", folder / "docs/javascripts")
    (folder / "docs/index.md").write_text("# First page\n\nNothing of the kind.\n", encoding="utf-8")
    (folder / "docs/other.md").write_text("# Other page\n\nA wombat digs.\n", encoding="utf-8")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(folder / "mkdocs.yml"),
    ]
    subprocess.run(command, check=True, env=environment)
    return folder / "site/index.html"


@pytest.mark.web
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
def test_site_opened_from_the_disk_can_be_searched(tmp_path: Path, browser: "Browser") -> None:
    pytest.importorskip("mkdocs")
    start = build_site(tmp_path)
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(start.as_uri())
    page.locator("input[name=query]").press_sequentially("wombat")  # the search listens to keys
    page.wait_for_selector(".md-search-result__article")
    found = page.get_attribute(".md-search-result__link", "href")
    assert found is not None
    assert found.split("?")[0] == (start.parent / "other.html").as_uri()
    assert [url for url in requests if not url.startswith("file:")] == []
    page.close()
