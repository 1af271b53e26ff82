"""The list of episodes in a real browser: in parts, the failures first, searched, by task."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envgym.core.trajectory import trajectories
from envgym.report.build import build_episode, build_evaluation
from envgym.report.bundle import EPISODES_PER_PAGE, write_report
from envgym.report.data import ReportData
from tests.envgym.report.search_tree import search_tree
from tests.support.browser import BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]

NUM_TASKS = 75
"""Of two samples each; every third task is solved, and the last is invalid."""


def reward_of(task: int) -> float | None:
    return None if task == NUM_TASKS - 1 else float(task % 3 == 0)


@pytest.fixture
def shown(page: "Page", report: ReportData, tmp_path: Path) -> "Page":
    """The report of an evaluation of 150 episodes, of 1,200 that were recorded."""
    first = report.episodes[0]
    episodes = []
    for number in range(2 * NUM_TASKS):
        task, sample = divmod(number, 2)
        said = replace(first.turns[0], segments=(), action=f"said in {number}", observation="")
        made = replace(
            first,
            id=f"e{number}",
            tree_id=f"held-out/test/{task}/{sample}",
            task_id=f"test/{task}",
            source="held-out",
            question=f"Compute {task} + 1.",
            answer=f"answer {number}",
            reward=reward_of(task),
            turns=(said,),
        )
        episodes.append(made)
    assert len(episodes) > 2 * EPISODES_PER_PAGE
    rewards = {f"test/{task}": reward_of(task) for task in range(NUM_TASKS)}
    successes = {task: [None if reward is None else reward == 1.0] * 2 for task, reward in rewards.items()}
    evaluation = build_evaluation(step=0, label="held-out", greedy=False, successes=successes)
    recorded = {"held-out": 1200}
    data = ReportData(meta=report.meta, evaluations=(evaluation,), episodes=tuple(episodes), num_recorded=recorded)
    write_report(data, tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("body[data-ready=true]")
    return page


def names(page: "Page") -> list[str]:
    found: list[str] = page.locator(".episode-list b").all_inner_texts()
    return found


def test_failures_come_first_in_parts_and_no_two_rows_are_alike(shown: "Page") -> None:
    first = [f"test/{NUM_TASKS - 1}", *(f"test/{task}" for task in range(NUM_TASKS - 1) if task % 3)]
    expected = [f"{task} #{sample}" for task in first for sample in (0, 1)]
    assert names(shown) == expected[:100]
    rows = shown.locator(".episode-list li").all_inner_texts()
    assert len(set(rows)) == len(rows) == 100
    assert "Compute 1 + 1." in rows[2]
    assert "answer 2" in rows[2]
    assert shown.locator(".side .found").inner_text() == "150 of 1,200 episodes in this report"
    shown.get_by_label("Later episodes").click()
    assert names(shown) == [f"test/{task} #{sample}" for task in range(0, NUM_TASKS - 1, 3) for sample in (0, 1)]
    assert shown.locator(".side .pager").inner_text().split("\n")[1] == "101 to 150 of 150"


def test_what_was_said_in_an_episode_of_any_part_is_found(shown: "Page") -> None:
    shown.locator("#episodes input[type=search]").fill("said 149")
    shown.get_by_text("1 found; 150 of 1,200 episodes in this report").wait_for()
    assert names(shown) == [f"test/{NUM_TASKS - 1} #1"]
    shown.locator(".episode-pane", has_text="said in 149").wait_for()


def test_tasks_are_listed_failures_first_and_lead_to_their_episodes(shown: "Page") -> None:
    cells = [row.inner_text().split("\t") for row in shown.locator("table.tasks tbody tr").all()]
    assert [row[0] for row in cells[:3]] == [f"test/{NUM_TASKS - 1}", "test/1", "test/2"]
    assert [row[1].split("\n")[0].strip() for row in cells[:3]] == ["0 of 0", "0 of 2", "0 of 2"]
    assert len(cells) == 25
    shown.get_by_label("Find tasks").fill("compute 34")
    assert shown.locator("table.tasks tbody tr").count() == 1
    shown.locator("table.tasks button").click()
    assert names(shown) == ["test/34 #0", "test/34 #1"]
    shown.get_by_text("Task test/34 alone").click()
    assert len(names(shown)) == 100


def test_episodes_of_one_tree_are_named_by_where_they_ended(page: "Page", report: ReportData, tmp_path: Path) -> None:
    made = search_tree()
    assert len(made.leaves) > 2
    of_tree = tuple(build_episode(trajectory, step=2) for trajectory in trajectories(made))
    chain = replace(report.episodes[0], id="train/2/chain/1", tree_id="chain/3", task_id="train/1", step=2)
    write_report(replace(report, episodes=(*of_tree, chain), trees=()), tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    assert names(page) == [*(f"train/37 #0, node {leaf}" for leaf in made.leaves), "train/1 #3"]
