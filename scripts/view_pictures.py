"""Take the pictures of the README: the report of a run, and a tree of it as `envgym view` draws it.

Run: python scripts/view_pictures.py RUN [--tree RUN]. The second run is one whose trees branch, such as an evaluation
with `--search mcts`; its tree with most nodes is drawn. Needs playwright, and a Chromium of the system.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, ViewportSize, sync_playwright

from envgym.errors import InvalidInput
from envgym.report.from_run import write_run_report
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.viewer.server import ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SIZE: ViewportSize = {"width": 1280, "height": 800}


def take_report(browser: Browser, run: RunDirectory) -> Path:
    """Take the first screen of the report."""
    path = IMAGES / "report.png"
    with tempfile.TemporaryDirectory() as folder:
        page = browser.new_page(viewport=SIZE)
        page.goto(write_run_report(run, Path(folder) / "report.html").as_uri())
        page.wait_for_selector("body[data-ready=true]")
        page.screenshot(path=path)
        page.close()
    return path


def take_tree(browser: Browser, run: RunDirectory) -> Path:
    """Take the largest tree of a run, with the leaf of the highest reward chosen."""
    path = IMAGES / "tree.png"
    viewed = ViewedRun(run.path)
    trees = trees_of(run.episodes())
    InvalidInput.unless(trees, "run", "have trees", "none", where=str(run.path), do="name another with --tree")
    tree = max(trees, key=lambda tree: len(tree.nodes))
    viewed.refresh()
    columns = viewed.columns
    (row,) = columns.table.slice(columns.table["tree_id"].to_pylist().index(tree.id), 1).to_pylist()
    tree_view = viewed.tree(row["source"], row["step"], tree.id)
    rewards = [node["mean_reward"] if node["ending"] else None for node in tree_view["nodes"]]
    values = [-1.0 if reward is None else float(reward) for reward in rewards]
    leaf = values.index(max(values))
    name = {"source": tree_view["source"], "step": tree_view["step"], "tree": tree.id, "node": leaf}
    server = ViewerServer([viewed])
    with running(server):
        page = browser.new_page(viewport=SIZE)
        page.goto(f"{server.url}/#/run/0/tree?{urlencode(name)}")
        page.wait_for_selector(".tree-node.is-chosen")
        page.wait_for_selector(".node-pane .segment")
        page.mouse.click(5, 5)  # nothing is focused in the picture
        page.screenshot(path=path)
        page.close()
    return path


def main() -> int:
    """Take both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--tree", metavar="RUN", help="run whose largest tree is drawn (default: the same)")
    args = parser.parse_args()
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        print(take_report(browser, RunDirectory.open(args.run)))
        print(take_tree(browser, RunDirectory.open(args.tree or args.run)))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
