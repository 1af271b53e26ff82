"""Writes a report: one page made of the files in `static/`, with the data embedded.

The page needs nothing else: no network, no server, no build. Styles and scripts are joined in the order of
`static/bundle.json`; a script may use those before it. A view (report, tree, and later app) is a name in
`EG.views` of `main.js`.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from envgym.core.json_types import JsonValue
from envgym.errors import InvalidInput
from envgym.report.data import TRAIN, ReportData, TreeData, to_json
from envgym.runs.files import write_atomic

EPISODES_PER_PAGE = 64
_BODY = ("prompt", "messages", "turns")
"""The large fields of an episode."""
_SLOT = re.compile(r"\{\{([A-Z]+)\}\}")


def write_report(data: ReportData, path: Path, *, view: Literal["report", "tree"] = "report") -> None:
    """Write `data` as a page that opens from disk, in one step: a reader sees the old file or the new one.

    Args:
        data: what the page shows.
        path: file to write or replace.
        view: the whole report, or its first tree alone.

    Raises:
        InvalidInput: two episodes or two trees share an id.
    """
    for what, ids in (("episode", [item.id for item in data.episodes]), ("tree", [item.id for item in data.trees])):
        for name, count in Counter(ids).items():
            must, do = "be unique in a report", "name the sample or the leaf in it"
            InvalidInput.unless(count <= 1, f"{what} id", must, repr(name), where="write_report", do=do)
    name = f"{tree_title(data.trees[0])} - {data.meta.name}" if view == "tree" else data.meta.name
    page = render_page(title=f"{name} - envgym {view}", view=view, data=pack(data))
    write_atomic(path, page)


def pack(data: ReportData) -> dict[str, JsonValue]:
    """Return the JSON of a report as its page holds it, so that one of thousands of episodes opens quickly.

    What a list of episodes shows stands as it is. The large fields of every `EPISODES_PER_PAGE` episodes are one entry
    of `pages`: their JSON, deflated, in base 64. The page inflates what is looked at, and all for a search.
    """
    packed = to_json(data)
    assert isinstance(packed, dict), "a record's JSON"
    episodes: list[dict[str, JsonValue]] = packed["episodes"]
    bodies: list[JsonValue] = [{key: episode.pop(key) for key in _BODY} for episode in episodes]
    starts = range(0, len(bodies), EPISODES_PER_PAGE)
    pages: list[JsonValue] = [_deflate(bodies[start : start + EPISODES_PER_PAGE]) for start in starts]
    return {**packed, "pages": pages, "page_size": EPISODES_PER_PAGE, "advantage_scale": _advantage_scale(data)}


def _deflate(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii")


def _advantage_scale(data: ReportData) -> float:
    """Return the size that 98 % of the shown tokens' advantages stay below; 0 where there are none."""
    of_episodes = (turn.segments for episode in data.episodes for turn in episode.turns)
    of_trees = (node.content.segments for tree in data.trees for node in tree.nodes)
    segments = (segment for several in (*of_episodes, *of_trees) for segment in several)
    sizes = sorted(abs(value) for segment in segments for value in segment.advantages)
    return (sizes[int((len(sizes) - 1) * 0.98)] or sizes[-1]) if sizes else 0.0


def tree_title(tree: TreeData) -> str:
    """Name a tree; an evaluation's has the step too, since the same tasks are evaluated again under the same ids."""
    return tree.tree_id if tree.source == TRAIN else f"{tree.tree_id}, step {tree.step}"


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
    return _read_all("css")


@cache
def script_text() -> str:
    """Return the script, all modules in one scope of their own."""
    return f'(() => {{\n"use strict";\n{_read_all("js")}}})();\n'


@cache
def script_of(name: str) -> str:
    """Return one module of the script."""
    return _read(f"js/{name}.js")


def _read_all(folder: Literal["css", "js"]) -> str:
    return "\n".join(_read(f"{folder}/{name}") for name in json.loads(_read("bundle.json"))[folder])


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
