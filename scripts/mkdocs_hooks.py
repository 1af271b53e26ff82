"""Let pages of the repository's root appear in the site, and write what the site has beyond the pages in `docs/`.

The links of a page such as CONTRIBUTING.md are written from the root. Each environment has a page of its own: its card,
its facts and an example episode.
"""

import re
import sys
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from envgym.authoring.env_card import card_of
from envgym.cli.main import command_reference
from envgym.cli.settings import settings_tables
from envgym.registry import creator_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # mkdocs reads this file by its path
from scripts.environment_pages import sections_of

_GENERATED: Final = {
    "settings.md": ("<!-- tables -->", settings_tables),
    "commands.md": ("<!-- commands -->", command_reference),
}
"""Page -> the mark that stands for its generated part, and the function that writes it."""
_ENVIRONMENTS: Final = "environments.md"
_FILTER: Final = (
    '<input class="table-filter" type="search" size="40" placeholder="Filter: words of a row, such as code docker" '
    'style="border: 1px solid; padding: .3em .6em" hidden>'
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each environment."""
    index = files.get_file_from_path(_ENVIRONMENTS)
    for env_id, section in sections_of(index.content_string).items() if index else ():
        files.append(File.generated(config, f"{_page_of(env_id)}.md", content=_environment_page(env_id, section)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page with links into `docs/` made relative to `docs/`, and with its generated part."""
    if page.file.src_uri in _GENERATED:
        mark, write = _GENERATED[page.file.src_uri]
        return markdown.replace(mark, write())
    if page.file.src_uri == _ENVIRONMENTS:
        return _environments_index(markdown)
    return markdown.replace("](docs/", "](")


def _page_of(env_id: str) -> str:
    return f"environments/{env_id.replace('/', '_')}"


def _environment_page(env_id: str, section: str) -> str:
    card = card_of(creator_of(env_id)) or f"# {env_id}\n"
    own = re.sub(r"\]\((?!https?:|#)", "](../", section)
    return f"{card.rstrip()}\n\n## Facts and an example\n\n{own}\n"


def _environments_index(markdown: str) -> str:
    """Return the table of environments with a filter and links to their pages, without their sections."""
    index = markdown.partition("\n## ")[0]
    linked = re.sub(r"\[`([^`]+)`\]\(#[^)]+\)", lambda match: f"[`{match[1]}`]({_page_of(match[1])}.md)", index)
    return linked.replace("\n| environment |", f"\n{_FILTER}\n\n| environment |", 1)
