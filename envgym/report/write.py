"""Writes a report: one self-contained HTML file."""

from pathlib import Path

from envgym.errors import InvalidInput, sentence
from envgym.report.bundle import render_page
from envgym.report.data import ReportData
from envgym.report.schema import to_json
from envgym.runs import write_atomic


def write_report(data: ReportData, path: Path) -> None:
    """Write `data` as a page that opens from disk, in one step: a reader sees the old file or the new one.

    Raises:
        InvalidInput: two episodes share an id.
    """
    seen: set[str] = set()
    for episode in data.episodes:
        if episode.id in seen:
            must, do = "be unique in a report", "name the sample or the leaf in it"
            raise InvalidInput(sentence("episode id", must, repr(episode.id), where="write_report", do=do))
        seen.add(episode.id)
    page = render_page(title=f"{data.meta.name} - envgym report", view="report", data=to_json(data))
    write_atomic(path, page)
