"""The app beside a real trainer: curves, table and tokens of steps as they are made."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.train import train
from envgym.viewer.server import ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun
from tests.support.browser import BROWSER
from tests.support.tiny_runs import tiny_settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]

STEPS = 3
WAIT_S = 120.0


class Gate(Callback):
    """Holds the trainer after every step until it is let on."""

    def __init__(self) -> None:
        self.made, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.made.release()
        assert self.goes_on.acquire(timeout=WAIT_S)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, Gate]]:
    """Train in a thread, one step at a time; the first one is made."""
    gate, path = Gate(), tmp_path / "run"
    settings = tiny_settings(path, run={"steps": STEPS}, optim={"epochs": 2})
    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train, settings, callbacks=[gate])
        assert gate.made.acquire(timeout=WAIT_S)
        yield path, gate
        gate.goes_on.release(STEPS)
        assert trained.result().steps == STEPS


def detail(page: "Page", name: str) -> float:
    names, values = (page.locator(f".tooltip {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return float(dict(zip(names, values, strict=True))[name].split(" ")[0].replace("\u2212", "-"))


def test_pages_follow_a_trainer_step_by_step(browser: "Browser", live: tuple[Path, Gate]) -> None:
    path, gate = live
    viewed = ViewedRun(path)
    viewed.refresh()
    server = ViewerServer([viewed])
    complaints: list[str] = []
    with running(server):
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{server.url}/#/run/0")
        chart = page.locator("figure.chart", has_text="reward: mean")
        chart.get_by_text("last, step 1").wait_for()
        assert page.locator(".live").inner_text() == "follows the run"
        for step in range(2, STEPS + 1):
            gate.goes_on.release()
            assert gate.made.acquire(timeout=WAIT_S)
            chart.get_by_text(f"last, step {step}").wait_for()
        (row, *_) = (row for row in RunDirectory.open(path).episodes([STEPS]) if row["token_scores"])
        page.goto(f"{server.url}/#/run/0/episode?source=train&step={STEPS}&tree={row['tree_id']}&leaf={row['leaf']}")
        token = page.locator(".t.trained").last
        token.wait_for()
        token.hover()
        assert abs(detail(page, "log-prob gap")) < 1e-4
        assert 0 < detail(page, "entropy") < 10
        assert detail(page, "ratio") > 0
        gate.goes_on.release()
        page.goto(f"{server.url}/#/run/0")
        page.get_by_text("all train steps are done").wait_for()
        page.close()
    assert [text for text in complaints if not text.startswith("data:,")] == []
