"""The app in a real browser: a live run, filters, an episode, a tree and its replay, two runs; keys; hostile words."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envgym.core.trajectory import trajectories
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.viewer.server import ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun
from tests.envgym.report.search_tree import PRUNED
from tests.envgym.viewer.conftest import PER_STEP, TREE_ID, TREE_STEP
from tests.support.browser import BROWSER
from tests.support.large_runs import large_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]

PHONE: "ViewportSize" = {"width": 390, "height": 844}
Open = Callable[..., "Page"]


@pytest.fixture
def page(browser: "Browser", server: ViewerServer) -> Iterator["Page"]:
    """A new page; at the end its scripts must have had nothing to complain of, and asked nobody but the server."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: complaints.append(dialog.message))
    opened.on("request", lambda request: None if request.url.startswith(server.url) else complaints.append(request.url))
    yield opened
    opened.close()
    assert [text for text in complaints if not text.startswith("data:,")] == []


@pytest.fixture
def show(page: "Page", server: ViewerServer) -> Open:
    """Open an address of the app, and wait until it is drawn."""

    def opened(address: str = "", url: str = server.url) -> "Page":
        page.goto("about:blank")
        page.goto(f"{url}/#/{address}")
        drawn(page)
        return page

    return opened


def drawn(page: "Page") -> None:
    page.wait_for_selector("body[data-ready=true]")


def rows(page: "Page", name: str = "Episodes") -> list[str]:
    found: list[str] = page.locator(f'table[aria-label="{name}"] tbody tr').all_inner_texts()
    return found


def shown(page: "Page") -> int:
    return int(page.locator(".found").inner_text().split(" of ")[0].replace(",", ""))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)


TREE = f"run/0/tree?source=train&step={TREE_STEP}&tree={TREE_ID}"


def test_curves_follow_a_run_that_goes_on(show: Open, run: RunDirectory) -> None:
    page = show("run/0")
    chart = page.locator("figure.chart", has_text="train: success")
    assert "last, step 3" in chart.inner_text()
    assert page.locator(".live").inner_text() == "follows the run"
    run.append_metrics({"step": 4, "train/success": 0.75, "reward/mean": 0.5, "loss/new": 1.0})
    page.locator("figure.chart", has_text="loss: new").wait_for()
    assert "75.0 %" in chart.inner_text()
    assert "last, step 4" in chart.inner_text()
    run.append_metrics({"step": 100, "train/success": 0.9})
    page.get_by_text("all train steps are done").wait_for()


def test_table_grows_with_the_run(show: Open, run: RunDirectory) -> None:
    page = show("run/0/episodes")
    before = shown(page)
    run.write_episodes(9, [{**row, "step": 9} for row in run.episodes([1])])
    until(lambda: shown(page) == before + PER_STEP)


def test_filters_stand_in_the_address_and_survive_a_reload(show: Open, run: RunDirectory) -> None:
    page = show("run/0/episodes")
    saved = run.episodes()
    assert shown(page) == len(saved)
    page.get_by_label("Ending").select_option("ERROR")
    errors = sum(row["ending"].startswith("ERROR") for row in saved)
    until(lambda: shown(page) == errors)
    page.get_by_label("Search episodes").fill("calculator stopped")
    stopped = sum(row["invalid_reason"] == "the calculator stopped" for row in saved)
    until(lambda: shown(page) == stopped)
    page.get_by_text("Ranges").click()
    page.get_by_label("Step, at most").fill("2")
    early = sum(row["invalid_reason"] == "the calculator stopped" and row["step"] <= 2 for row in saved)
    until(lambda: shown(page) == early)
    assert "text=calculator+stopped" in page.url
    page.reload()
    drawn(page)
    assert shown(page) == early
    assert page.get_by_label("Search episodes").input_value() == "calculator stopped"
    page.get_by_label("Step, at most").fill("two")
    assert page.get_by_label("Step, at most").get_attribute("aria-invalid") == "true"


def test_column_sorts_down_up_and_not_at_all(show: Open) -> None:
    page = show("run/0/episodes?max_step=3")
    column = [int(cell) for cell in page.locator("td.tokens").all_inner_texts()]
    page.get_by_role("button", name="tool errors").click()
    page.locator("th.tool_errors[aria-sort=descending]").wait_for()
    values = [int(text) for text in page.locator("td.tool_errors").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0
    page.get_by_role("button", name="tool errors").click()
    page.locator("th.tool_errors[aria-sort=ascending]").wait_for()
    page.get_by_role("button", name="tool errors").click()
    until(lambda: page.locator("th[aria-sort]").count() == 0)
    assert [int(cell) for cell in page.locator("td.tokens").all_inner_texts()] == column


def test_keys_lead_through_the_table_to_an_episode_and_its_neighbours(show: Open) -> None:
    page = show("run/0/episodes?sort=task&descending=false&max_step=3")
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator("tbody tr").nth(1)
    assert second.evaluate("(row) => row === document.activeElement")
    tree_id = re.search(r"tree=([^&]*)", str(second.get_attribute("data-href")))
    assert tree_id
    page.keyboard.press("Enter")
    page.locator(".episode-pane").wait_for()
    assert tree_id[1] in page.url
    page.keyboard.press("]")
    page.wait_for_selector('body[data-shown*="at=2"]')
    page.keyboard.press("[")
    page.wait_for_selector('body[data-shown*="at=1"]')
    page.get_by_text("Table").click()
    page.locator("th.task[aria-sort=ascending]").wait_for()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.get_by_role("button", name="Close").click()


def test_episode_says_what_its_record_says(show: Open, run: RunDirectory) -> None:
    (tree,) = (tree for tree in trees_of(run.episodes([2])) if tree.id == "step-000002/001/02")
    page = show("run/0/episode?source=train&step=2&tree=step-000002/001/02&leaf=2")
    tokens = "".join(page.locator(".segment.policy .t").all_text_contents())
    assert tokens == "".join("".join(node.edge.segments[0].token_strings) for node in tree.nodes[1:])
    assert page.locator("article.turn h4").all_inner_texts()[0] == "Prompt"
    assert page.locator(".episode-pane .trained").count() == sum(len(node.edge.segments[0]) for node in tree.nodes[1:])
    page.get_by_role("button", name="Advantage").click()
    assert page.locator(".segment.policy .t").first.evaluate("(token) => token.style.background") != ""
    token = page.locator(".segment.policy .t").nth(4)
    for coloring, is_colored in (("Entropy", True), ("Ratio", True), ("Log-prob gap", True), ("Origin", False)):
        page.get_by_role("button", name=coloring, exact=True).click()
        assert (token.evaluate("(token) => token.style.background") != "") is is_colored, coloring
    token.hover()
    details = dict(zip(*(page.locator(f".tooltip {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
    sampled = tree.nodes[1].edge.segments[0].behavior_logprobs
    assert sampled is not None
    assert float(details["learner's log-prob"].replace("\u2212", "-")) == pytest.approx(sampled[4] + 0.125, abs=1e-4)
    numbers = [details[name].removesuffix(" nats") for name in ("log-prob gap", "entropy", "ratio")]
    assert numbers == ["0.1250", "1.0000", "1.2500"]
    page.get_by_role("button", name="Messages").click()
    assert page.locator(".segment.policy .text").first.inner_text() == str(tree.nodes[1].outcome.action)  # type: ignore[union-attr]  # it ends a turn


def test_group_shows_its_members_side_by_side(show: Open, run: RunDirectory) -> None:
    page = show("run/0/groups?spread=some")
    page.locator('table[aria-label="Groups"] tbody tr').first.click()
    page.locator(".side-by-side .episode-pane").nth(1).wait_for()
    assert len(rows(page, "Members")) == 8
    page.locator("tbody input[type=checkbox]").nth(2).check()
    page.locator(".side-by-side .episode-pane").nth(2).wait_for()
    group = page.url
    page.goto("about:blank")
    page.goto(group)
    drawn(page)
    assert page.locator(".side-by-side .episode-pane").count() == 3
    members = page.locator("td.reward").all_inner_texts()
    values = [float(text) for text in members if text != "invalid"]
    mean = sum(values) / len(values)
    told = [text.replace("\u2212", "-") for text in page.locator("td.difference").all_inner_texts()]
    assert [float(text) for text in told if text] == pytest.approx([value - mean for value in values], abs=0.0006)


def test_tree_is_drawn_with_visits_values_and_reasons(show: Open, viewed: ViewedRun) -> None:
    page = show(TREE)
    nodes = viewed.tree("train", TREE_STEP, TREE_ID)["nodes"]
    assert page.locator(".tree-node").count() == len(nodes) == 60
    radii = [float(circle.get_attribute("r") or 0) for circle in page.locator(".tree-node circle").all()]
    visits = [node["stats"]["visits"] for node in nodes]
    by_visits = sorted(range(60), key=lambda index: visits[index])
    assert [radii[index] for index in by_visits] == sorted(radii), "more visits, larger node"
    pruned = [index for index, node in enumerate(nodes) if node["stats"]["pruned"] is not None]
    assert page.locator(".tree-node .cut").count() == len(pruned) > 0
    page.get_by_text("with the reason").click()
    assert PRUNED in page.locator(".pruned").inner_text()
    page.locator(".pruned button").first.click()
    page.locator(".node-pane .why").wait_for()
    assert page.locator(".node-pane .why").inner_text() == f"Pruned: {PRUNED}"
    assert page.locator(".tree-node.is-chosen").get_attribute("data-index") == str(pruned[0])
    page.get_by_role("button", name="Advantage").first.click()
    assert "\u2212" in page.locator(".controls > .ramp").inner_text()


def test_growth_of_a_tree_is_replayed_with_its_budget(show: Open, viewed: ViewedRun) -> None:
    page = show(TREE)
    nodes = viewed.tree("train", TREE_STEP, TREE_ID)["nodes"]
    slider = page.get_by_label("Nodes recorded so far")
    slider.fill("10")
    assert page.locator(".tree-node:not(.is-later)").count() == 10
    spent = sum(node["cost"]["tokens_generated"] for node in nodes[:10])
    whole = sum(node["cost"]["tokens_generated"] for node in nodes)
    assert f"{spent:,} of {whole:,} generated tokens" in " ".join(page.locator(".budget").inner_text().split())
    slider.fill("60")
    page.locator(".tree-drawing").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Pause").wait_for()
    until(lambda: 1 < page.locator(".tree-node:not(.is-later)").count() < 60)
    page.get_by_role("button", name="Replay").wait_for()
    assert page.locator(".tree-node:not(.is-later)").count() == 60


def test_arrow_keys_walk_through_a_tree(show: Open, viewed: ViewedRun) -> None:
    page = show(TREE)
    nodes = viewed.tree("train", TREE_STEP, TREE_ID)["nodes"]
    children = [index for index, node in enumerate(nodes) if node["parent"] == 0]
    page.locator(".node-pane h3", has_text="Prompt").wait_for()
    for key, index in (("ArrowRight", children[0]), ("ArrowDown", children[1]), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        page.locator(f'.tree-node.is-chosen[data-index="{index}"]').wait_for()
    assert f"node={0}" in page.url


def test_two_runs_are_compared(page: "Page", show: Open, run: RunDirectory, tmp_path: Path) -> None:
    other = large_run(tmp_path / "other", num_steps=2, episodes_per_step=8)
    other.change_config({**other.config, "optim": {"learning_rate": 0.01}}, step=0)
    problem = "run schema must be 1..4, got 99 (third); read it with a newer envgym."
    made = ViewerServer([ViewedRun(run.path), ViewedRun(other.path)], problems=[problem])
    page.route("**/*", lambda route: route.continue_())
    with running(made):
        page.context.clear_cookies()
        browser = page.context.browser
        assert browser is not None
        fresh = browser.new_page()
        complaints: list[str] = []
        fresh.on("console", lambda message: complaints.append(message.text))
        fresh.goto(f"{made.url}/")
        drawn(fresh)
        assert "got 99 (third)" in fresh.locator(".why").inner_text()
        fresh.get_by_role("link", name="Compare").click()
        fresh.locator("h1", has_text="run and other").wait_for()
        assert fresh.locator("figure.chart path.line").count() == 2 * fresh.locator("figure.chart").count()
        assert rows_of_settings(fresh) == ["optim.learning_rate\t0.001\t0.01"]
        fresh.locator(".controls input[type=checkbox]").nth(1).uncheck()
        fresh.locator("h1", has_text=re.compile("^run$")).wait_for()
        fresh.close()
        assert complaints == []


def rows_of_settings(page: "Page") -> list[str]:
    found: list[str] = page.locator("table.compared").first.locator("tbody tr").all_inner_texts()
    return found


def test_task_at_two_steps_side_by_side(show: Open) -> None:
    page = show("run/0/task?source=train&task=train/3&a=1&b=3")
    assert page.locator(".side-by-side .episode-pane").count() == 2
    heads = page.locator(".side-by-side .episode-head").all_inner_texts()
    assert "train, step 1" in heads[0]
    assert "train, step 3" in heads[1]
    page.get_by_label("Step, side a").select_option("1")
    page.locator(".side-by-side .episode-head", has_text="step 2").wait_for()
    assert "a=2" in page.url


def test_environment_is_played(show: Open) -> None:
    page = show("env?id=math/arithmetic-v0&run=0")
    page.get_by_role("button", name="Begin an episode").click()
    page.get_by_label("Action").fill("/calculator 6*7")
    page.keyboard.press("Control+Enter")
    page.locator(".talk .segment.tool .text", has_text=re.compile("^42$")).wait_for()
    page.get_by_label("Action").fill("/nothing 1")
    page.get_by_role("button", name="Send").click()
    page.locator(".talk .why").wait_for()
    for _ in range(2):
        page.get_by_role("button", name="Let the oracle act").click()
        page.wait_for_timeout(200)
    page.locator(".talk .badge", has_text="terminated").wait_for()
    assert page.get_by_label("Action").is_disabled()


def test_hostile_words_are_shown_and_not_run(show: Open, run: RunDirectory) -> None:
    page = show("run/0/episodes?text=again&task=train/hard")
    page.locator("tbody tr").first.click()
    page.locator(".episode-pane").wait_for()
    assert "</script><script>document.title = 'owned'</script>" in page.locator(".episode-pane").inner_text()
    (talk,) = (tree for tree in trees_of(run.episodes([TREE_STEP])) if tree.env_id == "texts")
    leaf = trajectories(talk)[0].leaf
    show(f"run/0/tree?source=train&step={TREE_STEP}&tree={talk.id}&node={leaf}")
    show("run/0/group?name=<img src=x onerror=alert(1)>")
    assert "<img src=x" in page.locator(".why").inner_text()
    assert page.locator("img").count() == 0
    assert "owned" not in page.title()


@pytest.mark.parametrize(
    "address", ["", "run/0", "run/0/episodes", "run/0/groups", TREE, "env?id=math/arithmetic-v0", "compare?runs=0"]
)
def test_nothing_sticks_out_on_a_phone(show: Open, page: "Page", address: str) -> None:
    page.set_viewport_size(PHONE)
    show(address)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.locator("nav").evaluate("(bar) => bar.scrollWidth <= bar.clientWidth")
    tables = page.locator(".scroll").all()
    assert all(table.evaluate("(box) => box.scrollWidth <= box.clientWidth") for table in tables)


def test_address_that_is_none_is_one_sentence(show: Open) -> None:
    for address, sentence in (
        ("nowhere", "The address must be one of the viewer, got nowhere"),
        ("run/9/episodes", "The run must be one of 0..0, got 9"),
        ("compare?runs=0,5", "The runs must be some of 0..0, got 0,5"),
    ):
        page = show(address)
        assert page.get_by_role("alert").inner_text().startswith(sentence)
