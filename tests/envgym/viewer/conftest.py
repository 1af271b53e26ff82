"""A run to look at: groups of arithmetic episodes, searches that branch, an episode of messages, hostile words."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.viewer.server import ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun
from tests.envgym.report.search_tree import HOSTILE, outcome_advantages, search_tree, spoken
from tests.support.large_runs import large_run

NUM_STEPS, PER_STEP = 3, 48
TREE_STEP = 4
TREE_ID = f"step-{TREE_STEP:06d}/000/00"


def write_run(path: Path) -> RunDirectory:
    """Write the run."""
    run = large_run(path, num_steps=NUM_STEPS, episodes_per_step=PER_STEP)
    trees = [replace(search_tree(60, seed=seed), id=f"step-{TREE_STEP:06d}/000/{seed:02d}") for seed in range(2)]
    given = {(tree.id, leaf): entries for tree in trees for leaf, entries in outcome_advantages(tree).items()}
    talk = replace(spoken(f"hello {HOSTILE}", "again"), id=f"step-{TREE_STEP:06d}/001/00")
    run.write_episodes(TREE_STEP, episode_rows([*trees, talk], step=TREE_STEP, advantages=given))
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return the run, in a folder of its own."""
    return write_run(tmp_path / "run")


def open_read(path: Path) -> ViewedRun:
    """Open a run, and read all details."""
    viewed_run = ViewedRun(path)
    viewed_run.refresh()
    while viewed_run.index.read_details():
        pass
    return viewed_run


@pytest.fixture
def viewed(run: RunDirectory) -> ViewedRun:
    """Return the run with all details read."""
    return open_read(run.path)


@pytest.fixture
def server(viewed: ViewedRun) -> Iterator[ViewerServer]:
    """Serve the run on a free port."""
    made = ViewerServer([viewed])
    with running(made):
        yield made


@pytest.fixture
def client(server: ViewerServer) -> Iterator[httpx.Client]:
    """Return a client of the server."""
    with httpx.Client(base_url=server.url, timeout=30.0) as made:
        made.headers["X-Envgym-Page"] = made.get("/api/page").json()["page_token"]
        yield made
