"""The sandboxes that tests share; tests are skipped, with the reason, where the machine allows none."""

from collections.abc import Iterator

import pytest

from envgym.sandbox import BwrapSandbox, DockerSandbox, Sandbox, why_unusable
from envgym.sandbox._docker_engine import DockerEngine


@pytest.fixture(scope="session")
def bwrap() -> Sandbox:
    sandbox = BwrapSandbox()
    reason = why_unusable(sandbox)
    if reason is not None:
        pytest.skip(reason)
    return sandbox


@pytest.fixture(scope="session")
def docker() -> Iterator[Sandbox]:
    """Give the docker back-end, and see at the end that no container is left."""
    pytest.importorskip("docker.errors", reason="the docker back-end needs the extra docker")
    sandbox = DockerSandbox(warm=4)
    reason = why_unusable(sandbox)
    if reason is not None:
        pytest.skip(reason)
    yield sandbox
    sandbox.close()
    engine = DockerEngine()
    assert engine.ids() == []
    engine.close()


@pytest.fixture(params=["bwrap", pytest.param("docker", marks=pytest.mark.docker)])
def walled(request: pytest.FixtureRequest) -> Sandbox:
    """Give each back-end that holds hostile programs."""
    sandbox: Sandbox = request.getfixturevalue(request.param)
    return sandbox
