"""Let pages of the repository's root appear in the site, and fill the pages of settings and commands.

The links of a page such as CONTRIBUTING.md are written from the root.
"""

from mkdocs.structure.pages import Page

from envgym.cli.main import command_reference
from envgym.cli.settings import settings_tables

_GENERATED = {
    "settings.md": ("<!-- tables -->", settings_tables),
    "commands.md": ("<!-- commands -->", command_reference),
}
"""Page -> the mark that stands for its generated part, and the function that writes it."""


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page with links into `docs/` made relative to `docs/`, and with its generated part."""
    if page.file.src_uri in _GENERATED:
        mark, write = _GENERATED[page.file.src_uri]
        return markdown.replace(mark, write())
    return markdown.replace("](docs/", "](")
