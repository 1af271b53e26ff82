"""Writes HTML."""

from html import escape

from quill.blocks import split
from quill.inline import parts
from quill.outline import Slugs

_TAGS = {"strong": "strong", "emphasis": "em", "code": "code"}


def to_html(text, ids=False):
    """Return the HTML of a text; with `ids`, headings get one that is not used twice."""
    return "\n".join(_blocks(text, Slugs() if ids else None))


def _blocks(text, slugs):
    for block in split(text):
        if block.kind == "heading":
            title = block.lines[0]
            name = f' id="{slugs.of(title)}"' if slugs else ""
            yield f"<h{block.level}{name}>{_inline(title)}</h{block.level}>"
        elif block.kind == "code":
            language = f' class="language-{block.language}"' if block.language else ""
            content = "".join(f"{escape(line, quote=False)}\n" for line in block.lines)
            yield f"<pre><code{language}>{content}</code></pre>"
        elif block.kind == "quote":
            yield "<blockquote>"
            yield from _blocks("\n".join(block.lines), slugs)
            yield "</blockquote>"
        elif block.kind in ("bullets", "numbers"):
            yield from _list(block)
        else:
            yield f"<p>{_inline(' '.join(block.lines))}</p>"


def _list(block):
    tag = "ul" if block.kind == "bullets" else "ol"
    start = f' start="{block.level}"' if block.kind == "numbers" and block.level != 1 else ""
    yield f"<{tag}{start}>"
    for item in block.lines:
        yield f"<li>{_inline(item)}</li>"
    yield f"</{tag}>"


def _inline(line):
    return "".join(_part(*part) for part in parts(line))


def _part(kind, text, address):
    shown = escape(text, quote=False)
    if kind == "link":
        return f'<a href="{escape(address)}">{shown}</a>'
    return f"<{_TAGS[kind]}>{shown}</{_TAGS[kind]}>" if kind in _TAGS else shown
