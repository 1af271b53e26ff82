"""Let pages of the repository's root (CONTRIBUTING.md) appear in the site: their links are written from the root."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page with links into `docs/` made relative to `docs/`."""
    return markdown.replace("](docs/", "](")
