"""The page on the viewer: its lines run, and what it says of addresses, tokens and the end is so."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest

from tests.support.pages import blocks_of

LINES = [line for block in blocks_of("docs/view.md", "bash") for line in block.commands]
SERVED = [line for line in LINES if "envgym view" in line and "--export" not in line]


@contextmanager
def serve_view(*words: str, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Run `envgym view` until the block ends, and yield the first line that it prints; a signal must end it cleanly."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **variables}
    command = [sys.executable, "-m", "envgym", "view", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                _, messages = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 128 + signal.SIGTERM, messages
        assert "interrupted; the viewer has stopped; the runs are as they were" in messages


@pytest.mark.docs
@pytest.mark.parametrize("line", SERVED)
def test_app_is_served_as_the_page_says(folder: Path, line: str) -> None:
    *settings, rest = re.split(r" ?envgym view ", line)
    variables = dict(word.split("=", 1) for word in shlex.split(settings[0]))
    words = re.sub(r"--port \d+|--open", "", rest).replace("0.0.0.0", "127.0.0.1")
    with serve_view(*shlex.split(words), "--port", "0", variables=variables) as printed:
        url = printed.partition("/?")[0].rstrip("/")
        token = variables.get("ENVGYM_VIEW_TOKEN")
        assert printed == (f"{url}/?token={token}" if token else f"{url}/")
        with httpx.Client(base_url=url) as client:
            if token:
                assert client.get("/api/runs").status_code == 401
                assert client.get("/", params={"token": token}).status_code == 303
            runs = client.get("/api/runs").json()["runs"]
            assert [run["path"] for run in runs] == [word for word in shlex.split(words) if word.startswith("runs/")]
            assert all(run["num_episodes"] > 0 and run["problems"] == [] for run in runs)
            table = client.get("/api/runs/0/episodes").json()
            assert table["total"] == runs[0]["num_episodes"]


def test_every_page_of_the_table_is_a_page_of_the_app() -> None:
    script = Path(__file__).resolve().parents[2] / "envgym/viewer/static/assets/main.js"
    num_pages = len(re.findall(r"^  \[/\^", script.read_text(encoding="utf-8"), re.MULTILINE))
    rows = re.findall(
        r"^\| [A-Z][^|]* \|", (Path(__file__).resolve().parents[2] / "docs/view.md").read_text(encoding="utf-8"), re.M
    )
    assert len(rows) == num_pages - 1, "the list of runs has no row"
