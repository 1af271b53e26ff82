"""An engine for the tests that play episodes in containers; they leave nothing in it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envgym.core.tasks import Split
from envgym.envs.code.harbor import Harbor
from envgym.sandbox import make_machines
from envgym.sandbox._docker_engine import LABEL, owner

if TYPE_CHECKING:
    from docker import APIClient

Begin = Callable[..., Harbor]


@pytest.fixture(scope="session")
def engine() -> Iterator["APIClient"]:
    """Give the engine, and see at the end that no container, volume or unnamed image is left."""
    docker = pytest.importorskip("docker", reason="containers need the extra docker")
    reason = make_machines("docker").why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    api = docker.from_env().api
    before = leftovers(api)
    yield api
    assert leftovers(api) - before == set()
    api.close()


def leftovers(api: "APIClient") -> set[str]:
    """Return the ids of all containers, volumes and images without a name that this process has made."""
    filters = {"label": [f"{LABEL}={owner()}"]}
    containers = {item["Id"] for item in api.containers(all=True, filters=filters)}
    volumes = {item["Name"] for item in api.volumes(filters=filters)["Volumes"] or []}
    return containers | volumes | set(api.images(quiet=True, filters={**filters, "dangling": True}))


@pytest.fixture
def begin(engine: "APIClient") -> Iterator[Begin]:
    """Give a function that makes an env of a folder and begins its only or named task; all are closed at the end."""
    with ExitStack() as closing_all:

        def begin_one(folder: Path | None = None, task: str | None = None, **settings: Any) -> Harbor:  # the env's own
            env = Harbor(folder=None if folder is None else str(folder), **settings)
            closing_all.enter_context(closing(env))
            tasks = [env.tasks.task(split, index) for split in Split for index in range(env.tasks.size(split) or 0)]
            env.reset(seed=0, options={"task": next(item for item in tasks if task in (None, item.id))})
            return env

        yield begin_one
