"""The page in a real browser."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from envgym.core.turns import Ending
from envgym.report.build import build_comparison, build_evaluation
from envgym.report.bundle import write_report
from envgym.report.data import EpisodeData, Meta, MetricRow, ReportData, ToolFailure, TurnData
from tests.support.browser import BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]

Draw = Callable[[ReportData], str]


@pytest.fixture
def drawn(page: "Page", tmp_path: Path) -> Draw:
    """Draw a report and return the page's elements after its script ran."""

    def draw(report: ReportData) -> str:
        path = tmp_path / "report.html"
        write_report(report, path)
        page.goto(path.as_uri())
        page.wait_for_selector('[data-ready="true"]', state="attached")
        # What stands in the scripts was not drawn.
        return re.sub(r"<script.*?</script>", "", page.content(), flags=re.DOTALL)

    return draw


def test_the_demo_report_is_drawn_whole(report: ReportData, drawn: Draw) -> None:
    page = drawn(report)
    assert 'data-ready="true"' in page
    ids = ("overview", "curves", "evaluation", "training", "episodes", "trees", "setup")
    assert [name for name in ids if f' id="{name}"' in page] == list(ids)
    comparison = report.comparisons[0]
    assert f"<b>{comparison.before.value * 100:.1f} %</b>" in page
    assert f"<b>{comparison.after.value * 100:.1f} %</b>" in page
    assert f"<b>+{comparison.paired.difference.value * 100:.1f}</b>" in page
    assert page.count("<li data-id=") == len(report.episodes)
    # Results, costs, two tool errors each, and the first 25 tasks.
    assert page.count("<tr>") == 2 * (1 + len(report.evaluations)) + (1 + 2 * len(report.evaluations)) + 1 + 25
    # 1 of success, 15 of known metrics; rewards, endings, time, invalid. Two others never change.
    assert page.count('<figure class="chart') == 20
    assert "calls: well-formed; errors: malformed or refused" in page
    assert "NaN" not in page
    assert "undefined" not in page


def test_run_whose_steps_trained_nothing_says_so_at_its_head(report: ReportData, drawn: Draw) -> None:
    said = "No train step updated the policy: every group was dropped (zero reward variance)."
    assert said not in drawn(report)
    empty = {"optim/updates": 0.0, "filter/kept": 0.0, "filter/zero_variance": 1.0, "filter/long": 0.0}
    warm = MetricRow(step=0, values={"sft/updates": 3.0, "optim/updates": 3.0})
    rows = (warm, *(MetricRow(step=step, values=empty) for step in (1, 2)))
    page = drawn(replace(report, metrics=rows, episodes=(), trees=()))
    assert page.count(said) == 1
    assert page.index(said) < page.index('class="tiles"')


def test_tokens_are_marked_by_origin_and_training(report: ReportData, drawn: Draw) -> None:
    episode = report.episodes[0]
    page = drawn(replace(report, episodes=(episode,), trees=()))
    segments = [*episode.prompt, *(segment for turn in episode.turns for segment in turn.segments)]
    # One more of each in the legend.
    for origin in ("prompt", "policy", "tool", "template", "injected"):
        rows = sum(segment.origin.lower() == origin for segment in segments)
        assert page.count(f'<div class="segment {origin}">') == rows
    trained = sum(sum(segment.trained) for segment in segments)
    assert page.count('<span class="t trained">') == trained + 1


def test_hostile_text_is_shown_and_not_run(report: ReportData, drawn: Draw) -> None:
    page = drawn(report)
    assert "<title>arithmetic-grpo - envgym report</title>" in page
    assert "<img" not in page
    # Text that would reorder its line is written out.
    assert "\u202e" not in page
    assert "\\u202e" in page


def test_a_report_of_nothing_is_drawn(drawn: Draw) -> None:
    page = drawn(ReportData(meta=Meta(name="empty <b>", env_ids=(), model="")))
    assert 'data-ready="true"' in page
    assert "<h1>empty &lt;b&gt;</h1>" in page
    assert "<figure" not in page


def test_an_evaluation_without_training_or_tokens_is_drawn(report: ReportData, drawn: Draw) -> None:
    turn = TurnData(segments=(), action="<think> 6*7 </think>", observation="42", reward=1.0)
    episode = EpisodeData(
        id="e",
        tree_id="e",
        env_id="math/x-v0",
        task_id="test/1",
        step=0,
        source="greedy",
        ending=Ending.TERMINATED,
        reward=1.0,
        turns=(turn,),
    )
    only = ReportData(meta=report.meta, evaluations=report.evaluations[:1], episodes=(episode,))
    page = drawn(only)
    assert "&lt;think&gt; 6*7 &lt;/think&gt;" in page
    assert ' id="curves"' not in page  # one point is no curve
    assert ' id="training"' not in page


def test_metric_that_never_changes_is_one_line_and_others_have_named_axes(report: ReportData, drawn: Draw) -> None:
    rows = tuple(
        MetricRow(step=step, values={"loss/kl_old": 0.0, "loss/policy": step / 8, "reward/answer": 0.5, "x/y": 3.0})
        for step in (1, 2, 3)
    )
    page = drawn(replace(report, metrics=rows, evaluations=(), comparisons=(), episodes=(), trees=()))
    assert re.findall(r"<figure.*?<h3>(.*?)</h3>", page) == ["Loss"]
    assert page.count(">train step</text>") == 1
    told = re.sub(r"<[^>]+>", "", " ".join(re.findall(r'<p class="flat">.*?</p>', page)))
    assert told == (
        "The same in every step. KL: kl old 0 The same in every step. x/y: 3 "
        "The same in every step. Reward components: answer 0.500"
    )


def test_warm_start_is_a_curve_over_its_own_updates(report: ReportData, drawn: Draw) -> None:
    shown = replace(report, metrics=(), evaluations=(), comparisons=(), warm_start=((3.0, 2.0), (1.0,)))
    page = drawn(shown)
    assert re.findall(r"<figure.*?<h3>(.*?)</h3>", page)[:1] == ["Warm start"]
    assert ">update</text>" in page
    assert "last, update 3" in page


def test_a_figure_has_one_interval_wherever_it_stands(report: ReportData, drawn: Draw) -> None:
    # Success and pass@1 are one figure; the tasks are all alike, or differ.
    for successes in ({"a": [True, False], "b": [False, False]}, {"a": [False, False], "b": [False, False]}):
        evaluation = build_evaluation(step=0, label="held-out", greedy=False, successes=successes)
        assert evaluation.success.valid == evaluation.pass_rates[0].at_k == evaluation.pass_rates[0].hat_k
        comparison = build_comparison(
            label="held-out",
            before_step=0,
            before=successes,
            after_step=1,
            after=successes,
            rng=np.random.default_rng(),
        )
        assert evaluation.success.valid == comparison.before == comparison.after
        page = drawn(ReportData(meta=report.meta, evaluations=(evaluation,), comparisons=(comparison,)))
        ends = re.findall(r"([0-9.]+ to [0-9.]+)(?: %, 95 % interval)?</", page)
        low, high = evaluation.success.valid.interval.low, evaluation.success.valid.interval.high
        assert ends.count(f"{low * 100:.1f} to {high * 100:.1f}") >= 3
        assert "bootstrap" not in page.lower().split("<script")[0]


def test_failed_calls_of_tools_are_listed_with_their_number(report: ReportData, drawn: Draw) -> None:
    failures = [ToolFailure(tool="sql", message="no such column: <b>nam</b>", calls=12, episodes=9)]
    evaluation = build_evaluation(
        step=0, label="held-out", greedy=True, successes={"a": [True]}, tool_failures=failures
    )
    page = drawn(ReportData(meta=report.meta, evaluations=(evaluation,)))
    assert "<summary>Tool errors</summary>" in page
    assert re.search(r'>sql</td><td class="num">12</td><td class="num">9</td>', page)
    assert "no such column: &lt;b&gt;nam&lt;/b&gt;" in page
    without = build_evaluation(step=0, label="held-out", greedy=True, successes={"a": [True]})
    assert "Tool errors" not in drawn(ReportData(meta=report.meta, evaluations=(without,)))


def test_numbers_are_rounded_as_on_the_command_line(report: ReportData, drawn: Draw) -> None:
    # Ties: 0.25 %, 0.75 %; both are exact in binary.
    for solved, text in ((1, "0.2 %"), (3, "0.8 %")):
        successes = {f"t{number}": [number < solved] for number in range(400)}
        evaluation = build_evaluation(step=0, label="held-out", greedy=True, successes=successes)
        page = drawn(ReportData(meta=report.meta, evaluations=(evaluation,)))
        assert f"<b>{text}</b>" in page
        assert f"{solved / 400:.1%}" == text.replace(" ", "")
