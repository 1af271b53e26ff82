"""The tree view in a real browser: walked through by keyboard, read, filtered."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envgym import Action, Ending, Observation, Scored, Split, Task, ToolCall
from envgym.core.builder import TreeBuilder
from envgym.core.tree import Edge, Tree
from envgym.core.turns import TurnOutcome
from envgym.report.bundle import write_report
from envgym.report.data import Meta, ReportData
from envgym.report.from_run import write_run_tree
from envgym.report.trees import build_tree
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from tests.envgym.report.search_tree import PRUNED, outcome_advantages, search_tree
from tests.support import example_trees
from tests.support.browser import BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]

TREE = search_tree()
MINUS = "\u2212"


def show(page: "Page", folder: Path, *trees: Tree) -> None:
    """Open the page of a tree, or the report of several."""
    shown = tuple(build_tree(tree, step=place, advantages=outcome_advantages(tree)) for place, tree in enumerate(trees))
    data = ReportData(meta=Meta(name="run", env_ids=(), model="tiny"), trees=shown)
    write_report(data, folder / "page.html", view="tree" if len(trees) == 1 else "report")
    page.goto((folder / "page.html").as_uri())


def row(page: "Page", index: int) -> "Locator":
    return page.locator(f'[role=treeitem][data-index="{index}"]')


def rows(page: "Page") -> list[int]:
    return [int(str(item.get_attribute("data-index"))) for item in page.locator("[role=treeitem]").all()]


def focused(page: "Page") -> int:
    return int(page.evaluate("Number(document.activeElement.dataset.index)"))


def press(page: "Page", *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def facts(page: "Page") -> dict[str, str]:
    names, values = page.locator(".node-facts dt"), page.locator(".node-facts dd")
    return dict(zip(names.all_inner_texts(), values.all_inner_texts(), strict=True))


def depth_first(tree: Tree) -> list[int]:
    order, stack = [], [0]
    while stack:
        order.append(index := stack.pop())
        stack.extend(reversed(tree.children[index]))
    return order


def test_tree_is_walked_through_by_keyboard_alone(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    page.wait_for_function("document.activeElement.dataset.index === '0'")
    press(page, "ArrowDown")
    assert focused(page) == rows(page)[1] == 1
    assert row(page, 1).get_attribute("aria-expanded") == "true"
    press(page, "ArrowLeft")
    assert (focused(page), row(page, 1).get_attribute("aria-expanded")) == (1, "false")
    assert row(page, 2).count() == 0
    press(page, "ArrowRight")
    assert (focused(page), row(page, 1).get_attribute("aria-expanded")) == (1, "true")
    press(page, "ArrowRight")
    assert focused(page) == TREE.children[1][0]
    press(page, "ArrowLeft", "ArrowLeft")  # closes, or goes up from a leaf
    press(page, "Home")
    assert focused(page) == 0
    press(page, "End")
    assert focused(page) == rows(page)[-1]
    press(page, "Home", "Enter")
    assert rows(page) == [0]
    press(page, "Enter", "*")
    assert rows(page) == depth_first(TREE)
    press(page, "ArrowUp")
    assert focused(page) == 0
    # What a screen reader is told: one row is in the tab order, and each knows its place.
    assert page.locator('[role=treeitem][tabindex="0"]').count() == 1
    assert page.locator('[role=treeitem][aria-selected="true"]').count() == 1
    for index in rows(page):
        parent = TREE.nodes[index].parent
        siblings = (0,) if parent is None else TREE.children[parent]
        place = (len(TREE.path(index)), siblings.index(index) + 1, len(siblings))
        told = [row(page, index).get_attribute(f"aria-{name}") for name in ("level", "posinset", "setsize")]
        assert told == [str(number) for number in place]


def test_message_and_numbers_of_a_node_are_those_of_the_record(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    data = build_tree(TREE, step=0, advantages=outcome_advantages(TREE))
    index = next(leaf for leaf in TREE.leaves if data.nodes[leaf].mean_reward)
    node = data.nodes[index]
    assert node.stats is not None
    page.get_by_role("button", name="Expand all").click()
    row(page, index).click()
    (advantage,) = node.advantages.values()
    told = facts(page)
    assert told["reward"].split() == ["1.10", "answer", "1", "speed", "0.100"]
    assert told["outcome"] == "1.10, of the episode that ended here"
    assert (told["visits"], told["value"], told["prior"]) == (str(node.stats.visits), "1.10", "0.250")
    assert told["advantage"] == f"{advantage:.3f}"
    sampled = node.cost.tokens_generated
    assert told["tokens"].endswith(f"{sampled} sampled by policy version 2, {sampled} trained")
    assert told["cost"] == f"{sampled} generated, 4 prefilled, 1 env step, 250 ms"
    assert told["spent below"] == "nothing"
    pane = page.get_by_role("region", name="Chosen node")
    assert pane.locator(".t.trained").count() == sampled
    assert "".join(pane.locator(".segment.policy .t").all_text_contents()).startswith(node.content.action)
    page.get_by_role("button", name="Messages").click()
    assert pane.locator(".segment.policy .text").inner_text() == node.content.action
    assert pane.locator(".segment.tool .text").inner_text() == "Right."
    page.get_by_role("button", name="From the start").click()
    assert pane.locator("article").count() == len(TREE.path(index))


def test_annotations_of_a_node_are_shown_with_their_words_or_their_error(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    page.get_by_role("button", name="Expand all").click()
    row(page, TREE.annotations[0].node).click()
    told = facts(page)
    assert told["judge (episode)"] == "0.500: half\\u001b right"
    assert told["scorer (turn)"] == "failed: no answer within 3 s"


def test_columns_of_every_row_are_those_of_the_record(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    page.get_by_role("button", name="Expand all").click()
    data = build_tree(TREE, step=0, advantages=outcome_advantages(TREE))
    for index, node in enumerate(data.nodes):
        assert node.stats is not None
        given = list(node.advantages.values())
        expected = (
            node.content.reward, node.mean_reward, node.stats.visits, node.stats.value,
            sum(given) / len(given) if given else None,
        )  # fmt: skip
        cells = [text.replace(MINUS, "-") for text in row(page, index).locator(".cell").all_text_contents()]
        assert [None if not cell else float(cell) for cell in cells] == [
            None if value is None else pytest.approx(value, abs=0.0051) for value in expected
        ]


def test_pruned_branch_says_why(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    page.get_by_label("Only").select_option("pruned")
    (pruned,) = (index for index, node in enumerate(TREE.nodes) if node.stats and node.stats.pruned)
    assert rows(page) == list(TREE.path(pruned))
    assert row(page, pruned).locator(".tag").inner_text() == "pruned"
    assert page.locator(".why").inner_text() == f"Pruned: {PRUNED}"


def test_filter_keeps_what_fits_and_what_leads_there(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    press(page, "/")
    page.keyboard.type("halving again")
    press(page, "Enter")
    hits = {
        index
        for index, node in enumerate(TREE.nodes)
        if "halving again" in "".join("".join(segment.token_strings) for segment in node.edge.segments).lower()
    }
    assert hits
    kept = {above for index in hits for above in TREE.path(index)}
    assert rows(page) == [index for index in depth_first(TREE) if index in kept]
    assert focused(page) in hits
    assert page.get_by_role("status").inner_text() == f"{len(hits)} of {len(TREE.nodes)} nodes"
    press(page, "/")
    page.keyboard.insert_text("no such words")  # at once: the first letters alone would fit other nodes
    press(page, "Enter")
    assert rows(page) == []
    press(page, "/", "Escape")
    assert len(rows(page)) > len(kept)
    assert focused(page) in hits


def test_hostile_text_is_shown_and_not_run(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    page.get_by_role("button", name="Expand all").click()
    page.get_by_label("Filter").fill("document.title")
    page.get_by_label("Filter").press("Enter")
    assert "</script><script>document.title = 'owned'" in page.locator(".node-pane").inner_text()
    assert page.title() == "step-000002/000/00 - run - envgym tree"
    assert page.locator("img").count() == 0


def test_tree_of_several_hundred_nodes_stays_whole_and_quick(page: "Page", tmp_path: Path) -> None:
    tree = search_tree(600)
    show(page, tmp_path, tree)
    assert 1 < len(rows(page)) <= 60  # opened as far as it can be surveyed
    press(page, "*")
    page.wait_for_function(f"document.querySelectorAll('[role=treeitem]').length === {len(tree.nodes)}")
    press(page, "End")
    last = depth_first(tree)[-1]
    assert focused(page) == last
    assert row(page, last).bounding_box() is not None
    # The map has a box for every node, and leads to it.
    assert page.locator(".tree-map rect").count() == len(tree.nodes)
    page.locator(".tree-map rect").nth(1).click()
    assert page.locator('[role=treeitem][aria-selected="true"]').get_attribute("data-index") == "1"


def test_report_has_its_trees_one_at_a_time(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE, replace(example_trees.fork_inside_a_turn(), id="forked"))
    assert len(rows(page)) > 4
    page.get_by_label("Tree", exact=True).select_option("1")
    assert rows(page) == [0, 1, 2, 3]
    assert page.locator(".tree-head .cell").all_inner_texts() == ["reward", "outcome", "adv."]  # no search, no visits
    row(page, 1).click()
    assert page.locator(".node-pane h3").inner_text() == "Turn 0, up to a fork"
    page.get_by_text("Advantages of 2 episodes").click()
    page.get_by_role("button", name="node 3").click()
    assert focused(page) == 3


@pytest.mark.parametrize("make", example_trees.HARD_CASES)
def test_every_hard_case_is_drawn(page: "Page", tmp_path: Path, make: Callable[[], Tree]) -> None:
    tree = make()
    show(page, tmp_path, tree)
    page.get_by_role("button", name="Expand all").click()
    assert rows(page) == depth_first(tree)
    for index in rows(page):
        row(page, index).click()
        assert not re.search("NaN|undefined|null", page.locator(".node-pane").inner_text())


def test_page_of_a_run_is_focused_on_the_tree_that_was_asked_for(page: "Page", tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="first", config={
        "run": {"seed": 0}, "model": {"name": "tiny"}, "agent": {"name": "plain"}, "envs": [{"id": "x"}],
        "evaluation": {"tasks": 4, "samples": 1},
    })  # fmt: skip
    run.write_episodes(1, episode_rows([make() for make in example_trees.HARD_CASES], step=1))
    page.goto(write_run_tree(run, "truncated_episode").as_uri())
    assert page.locator("h1").inner_text() == "truncated_episode"
    assert page.get_by_role("tree").count() == 1
    assert rows(page) == [0, 1, 2]
    assert row(page, 2).locator(".tag").inner_text() == "truncated: tokens"
    run.write_episodes(3, episode_rows([example_trees.invalid_branch()], step=3), label="held-out")
    page.goto(write_run_tree(run, "held-out/3/invalid_branch").as_uri())
    assert page.locator("h1").inner_text() == "invalid_branch, step 3"  # evaluated at every step under one id


def test_words_that_say_what_the_filter_takes_are_not_cut_off(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, TREE)
    field = page.get_by_label("Filter")
    field.fill(str(field.get_attribute("placeholder")))
    assert field.evaluate("field => field.scrollWidth <= field.clientWidth")


# ---- what a row says, and how it fits -------------------------------------------------------------------------------


def guessed(reward: float) -> Tree:
    call = ToolCall(name="guess", arguments={"number": 720})
    action = Action('{"name": "guess", "arguments": {"number": 720}}', tool_calls=[call])
    task = Task(id="train/1", prompt="", payload={}, split=Split.TRAIN)
    tree = TreeBuilder(id="t", env_id="puzzles/guess_number-v0", task=task, seed=1, prompt=())
    outcome = TurnOutcome(action=action, observation=Observation("Lower."), reward=Scored(value=reward))
    tree.add(tree.root, Edge(segments=(), ends_turn=True), outcome=outcome, ending=Ending.TERMINATED)
    return tree.freeze()


def test_row_says_the_call_and_its_reply(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, guessed(1.0))
    assert row(page, 1).locator(".says, .reply").all_inner_texts() == ["guess(720)", "\u2192 Lower."]


def test_colours_have_a_scale_only_where_rewards_differ_from_0(page: "Page", tmp_path: Path) -> None:
    show(page, tmp_path, guessed(0.0))
    assert page.locator(".tree-map figcaption").inner_text() == "mean reward 0 everywhere"
    page.get_by_text("Advantage", exact=True).click()
    assert page.locator(".ramp.advantage, i.advantage").count() == 0
    show(page, tmp_path, guessed(2.0))
    assert page.locator(".tree-map figcaption").inner_text().split() == ["mean", "reward", "0", "2"]


def test_nothing_overlaps_or_sticks_out_on_a_phone(page: "Page", tmp_path: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, tmp_path, TREE)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    overlaps = """() => [...document.querySelectorAll(".node-row")].flatMap((row) => {
      const boxes = [...row.children].map((cell) => cell.getBoundingClientRect()).filter(({ width }) => width);
      return boxes.slice(1).filter((box, i) => box.left < boxes[i].right - 0.5 || box.right > innerWidth);
    }).length"""
    assert page.evaluate(overlaps) == 0
    assert page.locator(".tree-head .cell:visible").all_inner_texts() == ["outcome", "adv."]
    heads = page.locator(".tree-head .cell:visible").all()
    assert not any(head.evaluate("(cell) => cell.scrollWidth > cell.clientWidth") for head in heads)
