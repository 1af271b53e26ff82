"""Writes a report: one self-contained HTML file."""

from collections import Counter
from pathlib import Path
from typing import Literal

from envgym.errors import InvalidInput, sentence
from envgym.report.bundle import render_page
from envgym.report.data import TRAIN, ReportData, TreeData
from envgym.report.schema import to_json
from envgym.runs import write_atomic


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
            if count > 1:
                must, do = "be unique in a report", "name the sample or the leaf in it"
                raise InvalidInput(sentence(f"{what} id", must, repr(name), where="write_report", do=do))
    name = f"{tree_title(data.trees[0])} - {data.meta.name}" if view == "tree" else data.meta.name
    page = render_page(title=f"{name} - envgym {view}", view=view, data=to_json(data))
    write_atomic(path, page)


def tree_title(tree: TreeData) -> str:
    """Name a tree; an evaluation's has the step too, since the same tasks are evaluated again under the same ids."""
    return tree.tree_id if tree.source == TRAIN else f"{tree.tree_id}, step {tree.step}"
