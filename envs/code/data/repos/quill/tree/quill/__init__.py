"""A small Markdown."""

from quill.html import to_html
from quill.outline import outline, slug
from quill.text import to_text
from quill.wrapping import wrap

__all__ = ["outline", "slug", "to_html", "to_text", "wrap"]
