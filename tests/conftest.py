"""Settings shared by all tests: offline, one thread per process, and fuzz tests that run by the clock."""

import gc
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

# Read when the libraries are first imported, so set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ["LANGUAGE"] = "C"  # argparse looks for a translation of each of its words in files, every time

import gymnasium
import hypothesis
import pytest

from envgym import registry
from tests.support.browser import BROWSER, FLAGS
from tests.support.scheduling import pytest_xdist_make_scheduler

__all__ = ["pytest_xdist_make_scheduler"]  # a hook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # tests that were started in the background start programs, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until the tests are collected: modules and tests stay, so nothing would be found among them

# No test fails by the clock: neither by a deadline nor because a busy machine draws examples slowly.
_UNTIMED = hypothesis.settings(deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
_NUM_EXAMPLES = int(os.environ.get("ENVGYM_EXAMPLES", "20"))
"""Examples of a law that does not state its own number; `make nightly` draws more."""
hypothesis.settings.register_profile("ci", _UNTIMED, derandomize=True, max_examples=_NUM_EXAMPLES)
hypothesis.settings.register_profile("fuzz", _UNTIMED, derandomize=False, max_examples=200)

_LANE_MODULES = {"peers": "trl", "other_projects": "trl"}
"""Folder of tests -> module without which its files cannot be imported."""

_FUZZ_SECONDS = float(os.environ.get("ENVGYM_FUZZ_SECONDS", "10"))
_LAST_ROUND_S = 180.0
"""What the round of examples may take during which a share is used up."""
_fuzz_share = pytest.StashKey[float]()


_SANDBOX_FOLDERS = [Path(__file__).parent / folder for folder in ("envgym/sandbox", "envs/code")]
"""Tests that wait for programs in sandboxes; they have a lane of their own."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a lane's folder where the package that it compares with or drives is not installed."""
    module = _LANE_MODULES.get(collection_path.name)
    return True if module is not None and find_spec(module) is None else None


def pytest_configure(config: pytest.Config) -> None:
    """Keep a list of runs of our own; draw fresh examples in the fuzz lane, the same ones everywhere else."""
    state = tempfile.TemporaryDirectory(prefix="envgym-state-")
    os.environ["XDG_STATE_HOME"] = state.name
    config.add_cleanup(state.cleanup)
    # No test cuts the power, and a tiny run would wait longer for the disk than it trains.
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda _: None)
    config.add_cleanup(patch.undo)
    is_fuzz = config.getoption("markexpr") == "fuzz"
    hypothesis.settings.load_profile("fuzz" if is_fuzz else "ci")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of a lane that is folders, and begin with the slow ones: no worker is left with one at the end."""
    for item in items:
        if any(map(item.path.is_relative_to, _SANDBOX_FOLDERS)):
            item.add_marker("sandbox")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Share the fuzz budget among the fuzz tests that a worker runs, and let each take its share."""
    fuzz = [item for item in session.items if item.get_closest_marker("fuzz") is not None]
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = session.config.stash[_fuzz_share] = _FUZZ_SECONDS / max(math.ceil(len(fuzz) / num_workers), 1)
    for item in fuzz:
        item.add_marker(pytest.mark.timeout(share + _LAST_ROUND_S))
    gc.collect()
    gc.freeze()  # modules stay: the garbage collector passes over millions of objects no more
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _registered_ids() -> Iterator[None]:
    """Forget the environments that a module's tests have registered, so that no other test lists them."""
    before = frozenset(registry.list_ids())
    yield
    for env_id in frozenset(registry.list_ids()) - before:
        del registry._registrations[env_id], gymnasium.registry[env_id]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Repeat a test marked `fuzz`, with new examples each time, until its share of the budget is used."""
    begun = time.monotonic()
    result = yield
    if pyfuncitem.get_closest_marker("fuzz") is not None:
        deadline = begun + pyfuncitem.config.stash[_fuzz_share]
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        while time.monotonic() < deadline:
            pyfuncitem.obj(**arguments)
    return result


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """One browser for all tests of a process, which can have no second driver."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[web]'")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=FLAGS.split())
        yield started
        started.close()


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of one server of vLLM for all tests of a process that leave its weights as they are."""
    from tests.support.vllm_server import serve_with_vllm  # imports torch

    with serve_with_vllm(tmp_path_factory.mktemp("served")) as url:
        yield url
