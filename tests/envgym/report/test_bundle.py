"""Tests of the static front end: what is in it, and what cannot get out of its data."""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envgym.report import bundle

STATIC = Path(str(files("envgym.report").joinpath("static")))


class Scripts(HTMLParser):
    """Collects the scripts of a page, and every tag's name."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self.title = ""
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        if self._open == "title":
            self.title += data


def parse(page: str) -> Scripts:
    parser = Scripts()
    parser.feed(page)
    return parser


def test_every_file_is_in_the_bundle_and_short() -> None:
    order = json.loads((STATIC / "bundle.json").read_text())
    for folder in ("css", "js"):
        assert {path.name for path in (STATIC / folder).iterdir()} == set(order[folder])
    for path in STATIC.rglob("*.*"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) < 400, path.name


def test_the_page_names_no_address_and_loads_nothing() -> None:
    page = bundle.render_page(title="t", view="report", data={})
    assert re.search(r"https?:|//[a-z]|@import|url\((?!#)", page) is None
    parsed = parse(page)
    assert [attributes.get("src") for attributes, _ in parsed.scripts] == [None, None]
    assert "img" not in parsed.tags
    assert "iframe" not in parsed.tags


def luminance(color: str) -> float:
    """Return the relative luminance of '#rrggbb', as WCAG defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    # White on black: 1.05 / 0.05.
    assert round(contrast("#ffffff", "#000000"), 6) == 21.0


def test_text_and_lines_stand_out_in_light_and_dark() -> None:
    light, dark = bundle.style_text().split("@media (prefers-color-scheme: dark)")
    for scheme in (light, dark):
        colors = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6});", scheme))
        for name in ("text", "muted", "accent", "policy", "tool", "injected", "template", "warn"):
            assert contrast(colors[name], colors["surface"]) >= 4.5, name
        for name in ("text", "muted"):
            assert contrast(colors[name], colors["page"]) >= 4.5, name
        for name in ("c1", "c2", "c3", "c4", "c5", "c6", "c7"):
            assert contrast(colors[name], colors["surface"]) >= 3, name


def test_no_module_builds_markup_from_text() -> None:
    script = bundle.script_text()
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert name not in script
    assert "</script" not in script.lower()
    assert "</style" not in bundle.style_text().lower()


def test_the_content_policy_admits_this_style_and_script_alone() -> None:
    page = bundle.render_page(title="t", view="report", data={"a": "b"})
    policies = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert len(policies) == 1
    assert policies[0].startswith("default-src &#x27;none&#x27;")
    assert "unsafe" not in policies[0]
    # The digest is of what stands between the tags.
    (_, data), (_, script) = parse(page).scripts
    assert data == '{"a":"b"}'
    assert script == bundle.script_text()


@given(st.recursive(st.text() | st.integers() | st.booleans(), lambda inner: st.lists(inner, max_size=3)))
def test_embedded_json_reads_back_and_stays_inside_its_element(data: object) -> None:
    text = bundle.embed_json(data)  # type: ignore[arg-type]  # hypothesis types recursive data as object
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()


def test_hostile_text_stays_data() -> None:
    hostile = "</script><script>alert(1)</script><!-- {{SCRIPT}} \u2028 \ud800"
    page = bundle.render_page(title=hostile.replace("\ud800", ""), view='x" onload="alert(1)', data={"text": hostile})
    parsed = parse(page)
    assert len(parsed.scripts) == 2
    assert parsed.title == hostile.replace("\ud800", "")
    attributes, text = parsed.scripts[0]
    assert attributes == {"type": "application/json", "id": "envgym-data"}
    assert json.loads(text) == {"text": hostile}
    assert 'data-view="x&quot; onload=&quot;alert(1)"' in page
