"""Numbers and states in pages: they are those of the files of results, and no page says otherwise than another."""

import re
import tomllib
from collections.abc import Iterator
from typing import Final

import pytest
from jinja2 import TemplateError

from benchmarks._figures import STATUS_PAGE, EarlierRun, StatusPart, filled, gpu_state, marks_of, read_status
from scripts import page_figures
from tests.support.pages import PAGES, ROOT

README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS: Final = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES if page != "CHANGELOG.md"}
EARLIER: Final = EarlierRun(device="X1", commit="abc", date="2026-01-02", stages=("demo", "server"))
WRITTEN_FROM_RECORDS: Final = ("docs/results/status.md", "docs/results/gpu.md")


# ---- marks -----------------------------------------------------------------------------------------------------------


def test_a_mark_gets_the_value_of_its_expression_and_keeps_its_comments() -> None:
    page = "It takes <!--= speed.loop.us -->9<!-- = --> µs, or <!--= speed.loop.us * 2 -->?<!-- = -->.\n"
    written = "It takes <!--= speed.loop.us -->46.7<!-- = --> µs, or <!--= speed.loop.us * 2 -->93.4<!-- = -->.\n"
    names = {"speed": {"loop": {"us": 46.7}}}
    assert filled(page, names) == written
    assert filled(written, names) == written
    assert marks_of(page) == ["speed.loop.us", "speed.loop.us * 2"]


def test_a_marked_block_keeps_its_comments_on_lines_of_their_own() -> None:
    page = "<!--= rows -->\nold\n<!-- = -->\n"
    assert filled(page, {"rows": "| a |\n|---|"}) == "<!--= rows -->\n| a |\n|---|\n<!-- = -->\n"


def test_a_mark_of_a_number_that_was_not_measured_is_refused() -> None:
    with pytest.raises(TemplateError):
        filled("<!--= speed.gone.us -->1<!-- = -->", {"speed": {"loop": {"us": 46.7}}})


def test_no_page_is_older_than_the_files_of_results() -> None:
    told = "run `python scripts/page_figures.py`"
    assert [path.relative_to(ROOT).as_posix() for path, _ in page_figures.outdated()] == [], told
    assert sum(len(marks_of(text)) for text in TEXTS.values()) > 20


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if marks_of(text)])
def test_no_line_of_text_begins_with_a_comment(page: str) -> None:
    """Markdown takes such a line for HTML, and shows its stars and brackets."""
    assert re.findall(r"^ {0,3}<!--(?:(?!-->).)*-->[^\n]*\S[^\n]*$", TEXTS[page], re.MULTILINE) == []
    assert TEXTS[page].count("<!--= ") == TEXTS[page].count("<!-- = -->") == len(marks_of(TEXTS[page]))


# ---- what ran on what ------------------------------------------------------------------------------------------------


def part(*stages: str) -> StatusPart:
    return StatusPart(name="a part", lane="core", stages=stages)


def test_state_on_a_gpu_is_that_of_the_record() -> None:
    good, bad = {"checks": [{"passed": True}]}, {"checks": [{"passed": True}, {"passed": False}]}
    record = {"machine": {"device": "X2"}, "commit": "def", "measured": "2026-03-04", "demo": good, "packing": bad}
    assert gpu_state(part("demo"), EARLIER, record) == "X2, def, 2026-03-04: demo passed"
    assert gpu_state(part("demo", "packing"), EARLIER, record).endswith(": demo passed, packing **failed**")
    assert gpu_state(part("demo"), EARLIER, record | {"demo": good | {"warnings": ["slow"]}}).endswith("**failed**")


def test_state_without_a_record_is_that_of_the_earlier_run_or_never() -> None:
    earlier = "X1, abc, 2026-01-02: passed; the record was not kept"
    assert gpu_state(part("demo", "packing"), EARLIER, None) == earlier
    assert gpu_state(part("server"), EARLIER, {"machine": {}, "demo": {}}) == earlier
    assert gpu_state(part("packing"), EARLIER, None) == gpu_state(part(), EARLIER, None) == "**never**"
    assert gpu_state(StatusPart(name="b", lane="core", no_gpu=True), EARLIER, None) == "does not use a GPU"


def test_every_stage_of_a_part_is_one_of_the_gpu_lane() -> None:
    from benchmarks.gpu import CHECKS, SPEED

    known = {stage.name for stage in (*CHECKS, *SPEED)}
    assert {stage for part in read_status().parts for stage in part.stages} <= known
    assert set(read_status().earlier.stages) <= known


_RAN: Final = re.compile(
    r"not (?:been |yet been )?run\b(?! (?:by|in|again|on the))|never been run|has passed its checks"
    r"|(?:not|never) (?:been )?(?:run|measured|tried) (?:by us|on a GPU|on several|on GPUs)",
)


def test_only_the_page_of_states_says_what_has_run() -> None:
    found = {
        page: matches
        for page, text in TEXTS.items()
        if page.startswith("docs/")
        and page not in WRITTEN_FROM_RECORDS
        and (matches := re.findall(rf"[^.|]*\b(?:GPU|CUDA|NCCL|vLLM)[^.|]*(?:{_RAN.pattern})[^.|]*", text))
    }
    assert found == {}, "link docs/results/status.md instead"


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(
            f"docs/{name}.md"
            for name in (
                "index",
                "architecture",
                "engines",
                "policy_servers",
                "processes",
                "cluster",
                "scaling",
                "packing",
                "install",
            )
        ),
    ],
)
def test_pages_on_hardware_link_the_page_of_states(page: str) -> None:
    assert "results/status.md" in TEXTS[page]
    assert STATUS_PAGE.exists()


# ---- the README ------------------------------------------------------------------------------------------------------

_UNSUPPORTED: Final = re.compile(
    r"[^.\n]*\b(?:not (?:yet )?supported|unsupported|does not support)\b[^.]*", re.IGNORECASE
)


def words_of(text: str) -> set[str]:
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Za-z]{5,}", text)}


def denied(text: str) -> Iterator[tuple[str, str]]:
    """Yield each environment with a sentence that calls its subject unsupported."""
    catalog = tomllib.loads((ROOT / "envs/catalog.toml").read_text(encoding="utf-8"))
    families = {env_id.partition("/")[0] for env_id in catalog}
    common = {"environment", "python", "model", "files", "action", "agent", "tool", "server", "image"}
    for sentence in _UNSUPPORTED.findall(text):
        for env_id, entry in catalog.items():
            names = words_of(env_id) | words_of(entry["summary"]) | families
            if (names - common) & words_of(sentence):
                yield env_id, sentence.strip()


def test_a_sentence_that_denies_an_environment_is_found() -> None:
    text = "It is fast. Not supported yet: theorem proving and text-adventure games. Images are not supported."
    found = dict(denied(text))
    assert "math/proofs-v0" in found
    assert set(found.values()) == {"Not supported yet: theorem proving and text-adventure games"}


def test_readme_calls_no_environment_unsupported() -> None:
    assert list(denied(README)) == []


def rows_with_results() -> list[str]:
    linked = (line for line in README.splitlines() if re.match(r"\| .*\]\(docs/results/", line))
    return [line for line in linked if "status.md" not in line]


def test_there_are_rows_with_results() -> None:
    assert len(rows_with_results()) >= 6


@pytest.mark.parametrize("row", rows_with_results())
def test_figures_of_a_row_of_the_readme_are_those_of_its_page(row: str) -> None:
    page = (ROOT / re.findall(r"\]\((docs/results/[\w/]+\.md)", row)[0]).read_text(encoding="utf-8")
    figures = re.findall(r"[+-]?\d+\.\d", re.sub(r"<!--.*?-->", "", row))
    assert figures
    assert [figure for figure in figures if figure not in page] == []
