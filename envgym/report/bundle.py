"""The static front end: one page made of the files in `static/`, with the data embedded.

The page needs nothing else: no network, no server, no build. Scripts are joined in the order of `SCRIPTS`, each may use
those before it. A view (report, tree, and later app) is a name in `EG.views` of `main.js`.
"""

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files

from envgym.core.json_types import JsonValue

STYLES = ("base.css", "charts.css", "episodes.css", "trees.css")
SCRIPTS = (
    "dom.js",
    "format.js",
    "scale.js",
    "store.js",
    "data.js",
    "palette.js",
    "frame.js",
    "lines.js",
    "stacks.js",
    "intervals.js",
    "header.js",
    "panels.js",
    "curves.js",
    "evaluation.js",
    "tokens.js",
    "episode.js",
    "episodes.js",
    "treemodel.js",
    "treemap.js",
    "outline.js",
    "node.js",
    "trees.js",
    "setup.js",
    "main.js",
)

_SLOT = re.compile(r"\{\{([A-Z]+)\}\}")


def render_page(*, title: str, view: str, data: JsonValue) -> str:
    """Return the whole page, ASCII but for the style and the scripts.

    The data cannot leave its script element, and the page's own policy runs no script and loads no file but its own.

    Args:
        title: of the window; any text.
        view: which view draws the data.
        data: JSON, without NaN.
    """
    style, script = style_text(), script_text()
    slots = {
        "POLICY": html.escape(_content_policy(style, script), quote=True),
        "TITLE": html.escape(title),
        "STYLE": style,
        "VIEW": html.escape(view, quote=True),
        "DATA": embed_json(data),
        "SCRIPT": script,
    }
    # One pass, so that a slot's name inside the data stays text.
    return _SLOT.sub(lambda slot: slots[slot[1]], _read("index.html"))


def embed_json(data: JsonValue) -> str:
    """Write JSON that is safe inside a script element: no `<`, `>`, `&`, nor any character beyond ASCII."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def style_text() -> str:
    """Return the style sheet."""
    return "\n".join(_read(f"css/{name}") for name in STYLES)


@cache
def script_text() -> str:
    """Return the script, all modules in one scope of their own."""
    modules = "\n".join(_read(f"js/{name}") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{modules}}})();\n'


def _read(name: str) -> str:
    return files("envgym.report").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


def _content_policy(style: str, script: str) -> str:
    """Return a policy under which only this very style and script work."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
