"""How the pages look in a real browser: laws of sizes, colours and focus."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from envgym.core.messages import Action, Observation
from envgym.core.trajectory import trajectories
from envgym.core.turns import TurnOutcome
from envgym.report.build import build_episode
from envgym.report.bundle import write_report
from envgym.report.data import EpisodeData, ReportData
from envgym.report.trees import build_tree
from tests.envgym.report.search_tree import HOSTILE, outcome_advantages, search_tree, spoken
from tests.support.browser import BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]

WIDTHS = (1400, 390)
LONG = f"{'one word after another ' * 400}{'x' * 800}"
HARD_TEXTS = (LONG, "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\U0001f600", HOSTILE)
"""10,000 characters, from right to left, an emoji, and what would run if it were markup."""

CONTRASTS = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => [...[0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])), 1];
  const linear = (byte) => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);

  function contrast(element, color) {
    let [ground, opacity] = [[255, 255, 255, 1], 1];
    const styles = [];
    for (let at = element; at; at = at.parentElement) styles.unshift(getComputedStyle(at));
    for (const { backgroundColor, opacity: own } of styles)
      [ground, opacity] = [over(rgba(backgroundColor), ground), opacity * own];
    const [red, green, blue, alpha] = rgba(color);
    const text = over([red, green, blue, alpha * opacity], ground);
    const [dark, light] = [luminance(text), luminance(ground)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  }

  const found = [];
  const walker = document.createTreeWalker(document.getElementById("app"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { data, parentElement: element } = walker.currentNode;
    const isSeen = element.checkVisibility({ visibilityProperty: true }) && !element.closest(":disabled, option");
    const { fill, color } = getComputedStyle(element);
    if (data.trim() && isSeen) found.push([contrast(element, element instanceof SVGElement ? fill : color), data]);
  }
  for (const field of document.querySelectorAll("[placeholder]"))
    found.push([contrast(field, getComputedStyle(field, "::placeholder").color), field.placeholder]);
  return found;
}"""
"""Every text with its contrast to what is below it, by WCAG 2."""

TOO_WIDE = """() => [...document.querySelectorAll("#app *")]
  .filter((element) => !element.closest(".scroll *, nav *, pre *"))
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
  .map((element) => element.outerHTML.slice(0, 80))"""
"""Boxes that stick out of the window; what lies in a box that scrolls by itself may."""

OVERLAPS = """() => [...document.querySelectorAll(".tree-rows .node-row")].filter((row, i, all) => {
  const parts = [...row.querySelectorAll(".twisty, .mark, b, .says, .reply, .tag, .cell")];
  const boxes = parts.map((part) => part.getBoundingClientRect()).filter(({ width }) => width > 0);
  const own = row.getBoundingClientRect();
  const isCrossed = boxes.slice(1).some((box, j) => box.left < boxes[j].right - 0.5);
  const isOut = boxes.some((box) => box.right > own.right + 0.5);
  const isUnder = i > 0 && own.top < all[i - 1].getBoundingClientRect().bottom - 0.5;
  return isCrossed || isOut || isUnder;
}).map((row) => row.textContent)"""
"""Rows of a tree of which two parts overlap, of which a part sticks out, or that overlap the row above."""

FOCUSABLE = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
  .filter((element) => element.checkVisibility() && !element.disabled)
  .map((element, i) => (element.dataset.number = String(i)))"""
"""Number what a keyboard must reach, in the order of the page."""

FOCUSED = """() => {
  const element = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(element);
  const hasMark = outlineStyle !== "none" && parseFloat(outlineWidth) >= 1;
  return element === document.body ? null : [element.dataset.number ?? "", hasMark];
}"""


def largest_advantage(episode: EpisodeData) -> float:
    segments = (segment for turn in episode.turns for segment in turn.segments)
    return max((abs(value) for segment in segments for value in segment.advantages), default=0.0)


@pytest.fixture(scope="module")
def hard(report: ReportData) -> ReportData:
    """The demo with hard texts in episodes and trees, and a tree with a long name."""
    search, texts = search_tree(), spoken(*HARD_TEXTS)
    (trajectory,) = trajectories(texts)
    episode = replace(build_episode(trajectory, step=3), question=LONG[-160:])
    source = "held-out, 4 samples, oracle-selected"
    first = build_tree(search, step=1_000_000, source=source, advantages=outcome_advantages(search))
    return replace(report, episodes=(episode, *report.episodes), trees=(first, build_tree(texts, step=2)))


@pytest.fixture
def opened(page: "Page", hard: ReportData, tmp_path: Path) -> "Page":
    write_report(hard, tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("body[data-ready=true]")
    return page


@pytest.mark.parametrize("width", WIDTHS)
def test_no_box_is_wider_than_the_window(opened: "Page", width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    opened.get_by_text("Expand all").click()
    for number in ("0", "1"):
        opened.get_by_label("Tree", exact=True).select_option(number)
        assert opened.evaluate(TOO_WIDE) == []
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        opened.get_by_role("button", name="From the start").click()
        opened.get_by_role("treeitem").last.click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast(opened: "Page", hard: ReportData, scheme: Literal["light", "dark"]) -> None:
    opened.emulate_media(color_scheme=scheme)
    opened.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    opened.locator(f'[data-id="{max(hard.episodes, key=largest_advantage).id}"]').click()
    for colouring in ("Origin", "Advantage", "Log-prob", "Entropy", "Ratio", "Log-prob gap"):
        for button in opened.get_by_role("button", name=colouring, exact=True).all():
            button.click()
        contrasts = opened.evaluate(CONTRASTS)
        assert len(contrasts) > 1000
        assert [(ratio, text) for ratio, text in contrasts if ratio < 4.5] == []


@pytest.mark.parametrize("width", [*WIDTHS, 700])
def test_no_two_parts_of_a_tree_overlap(opened: "Page", width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    opened.get_by_text("Expand all").click()
    assert opened.evaluate(OVERLAPS) == []


def test_reply_takes_the_place_that_its_call_leaves(page: "Page", tmp_path: Path, report: ReportData) -> None:
    short, long = "guess(720)", "Lower. " * 60
    tree = spoken(short, long)
    pairs = ((short, long), (long, short), (long, long), (short, short))
    nodes = [
        replace(node, outcome=TurnOutcome(action=Action(said), observation=Observation(answer)))
        for node, (said, answer) in zip([tree.nodes[1]] * 3 + [tree.nodes[2]], pairs, strict=True)
    ]
    chain = [replace(node, parent=parent) for parent, node in enumerate(nodes)]
    shown = build_tree(replace(tree, nodes=(tree.nodes[0], *chain)), step=0)
    write_report(ReportData(meta=report.meta, trees=(shown,)), tmp_path / "tree.html", view="tree")
    page.goto((tmp_path / "tree.html").as_uri())
    shares = []
    for row in page.get_by_role("treeitem").all()[1:]:
        place = row.locator(".words").evaluate("(part) => part.clientWidth")
        said, answer = row.locator(".says"), row.locator(".reply")
        is_cut = [part.evaluate("(part) => part.scrollWidth > part.clientWidth") for part in (said, answer)]
        shares.append((*is_cut, round(answer.evaluate("(part) => part.offsetWidth") / place, 1)))
    (short_long, long_short, long_long, short_short) = shares
    assert short_long[:2] == (False, True)
    assert short_long[2] > 0.7
    assert long_short[:2] == (True, False)
    assert long_short[2] < 0.3
    assert long_long == (True, True, 0.4)
    assert short_short[:2] == (False, False)


def test_hard_texts_are_shown_as_they_are(opened: "Page", hard: ReportData) -> None:
    opened.get_by_role("button", name="Messages").first.click()
    opened.locator(".episode-list li").first.click()
    prompt, *turns = opened.locator(".episode-pane").first.locator("article").all()
    assert [part.inner_text() for part in prompt.locator(".text").all()] == list(HARD_TEXTS)
    for turn, text in zip(turns, HARD_TEXTS, strict=True):
        assert [part.inner_text() for part in turn.locator(".text").all()] == [text, text]
    assert opened.title() == f"{hard.meta.name} - envgym report"
    assert opened.locator("#app img, #app script").count() == 0


def test_every_control_is_reached_by_tab_in_order_and_shows_its_focus(opened: "Page") -> None:
    numbers = opened.evaluate(FOCUSABLE)
    assert len(numbers) > 40
    opened.evaluate("window.scrollTo(0, 0)")
    reached = []
    for _ in range(2 * len(numbers)):
        opened.keyboard.press("Tab")
        focused = opened.evaluate(FOCUSED)
        if focused is None:
            break
        reached.append(focused)
    assert [number for number, _ in reached if number] == numbers
    assert all(has_mark for _, has_mark in reached)


def test_list_of_episodes_is_walked_through_with_the_arrow_keys(opened: "Page") -> None:
    opened.locator(".episode-list").focus()
    chosen = opened.locator(".episode-list li[aria-current] b")
    names = opened.locator(".episode-list b").all_inner_texts()
    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        opened.keyboard.press(key)
        assert chosen.inner_text() == names[place]
