"""Tests of the written report."""

import base64
import json
import re
import zlib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envgym.errors import InvalidInput
from envgym.report.bundle import write_report
from envgym.report.data import TRAIN, ReportData, to_json


def embedded(page: str) -> object:
    found = re.findall(r'<script type="application/json" id="envgym-data">(.*?)</script>', page, flags=re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def unpacked(data: Any) -> object:
    pages = [json.loads(zlib.decompress(base64.b64decode(page))) for page in data.pop("pages")]
    size = data.pop("page_size")
    assert all(len(page) == size for page in pages[:-1])
    del data["advantage_scale"]
    bodies = [body for page in pages for body in page]
    data["episodes"] = [{**facts, **body} for facts, body in zip(data["episodes"], bodies, strict=True)]
    return data


def test_the_file_holds_the_whole_report_in_the_published_form(report: ReportData, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    many = replace(report, episodes=tuple(replace(report.episodes[0], id=f"{number}") for number in range(150)))
    for shown in (report, many):  # three pages, the last of them short
        write_report(shown, path)
        data = unpacked(embedded(path.read_text(encoding="utf-8")))
        assert data == to_json(shown)
    jsonschema.validate(data, json.loads(files("envgym.report").joinpath("schema.json").read_text()))
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]


def test_what_a_policy_says_cannot_leave_its_element(report: ReportData, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(report, path)
    page = path.read_text(encoding="utf-8")
    # The demo's episodes and errors say both of these.
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "\u202e" not in page


def test_writing_again_replaces_the_file(report: ReportData, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(replace(report, episodes=()), path)
    first = path.read_bytes()
    write_report(replace(report, episodes=()), path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("what, id", [("episode", "train/0/tree-0/2"), ("tree", "train/2/step-000002/000/00")])
def test_records_with_one_id_are_refused_and_nothing_is_written(
    report: ReportData, tmp_path: Path, what: str, id: str
) -> None:
    first = getattr(report, f"{what}s")[0]
    twice: dict[str, Any] = {f"{what}s": (first, first)}
    with pytest.raises(InvalidInput, match=f"{what} id must be unique in a report, got '{id}'"):
        write_report(replace(report, **twice), tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_title_of_an_evaluated_tree_has_the_step_since_its_id_comes_again(report: ReportData, tmp_path: Path) -> None:
    for source, title in ((TRAIN, "t"), ("held-out", "t, step 3")):
        tree = replace(report.trees[0], tree_id="t", source=source, step=3)
        write_report(replace(report, trees=(tree,)), tmp_path / "tree.html", view="tree")
        assert f"<title>{title} - {report.meta.name} - envgym tree</title>" in (tmp_path / "tree.html").read_text(
            "utf-8"
        )


def test_page_of_a_tree_is_named_after_it(report: ReportData, tmp_path: Path) -> None:
    write_report(replace(report, episodes=()), tmp_path / "tree.html", view="tree")
    page = (tmp_path / "tree.html").read_text(encoding="utf-8")
    assert "<title>step-000002/000/00 - arithmetic-grpo - envgym tree</title>" in page
    assert '<body data-view="tree">' in page
