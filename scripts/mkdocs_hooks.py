"""Let pages of the repository's root appear in the site, and fill the page of settings from the models.

The links of a page such as CONTRIBUTING.md are written from the root.
"""

from mkdocs.structure.pages import Page

from envgym.cli.settings import settings_tables

_TABLES = "<!-- tables -->"
"""Stands for the tables of the page of settings."""


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page with links into `docs/` made relative to `docs/`, and with its tables."""
    if page.file.src_uri == "settings.md":
        return markdown.replace(_TABLES, settings_tables())
    return markdown.replace("](docs/", "](")
