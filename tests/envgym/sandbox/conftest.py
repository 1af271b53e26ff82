"""The sandboxes that tests share; tests are skipped, with the reason, where the machine allows none."""

from collections.abc import Iterator

import pytest

from envgym.sandbox import MIB, BwrapSandbox, DockerSandbox, Sandbox, why_unusable
from envgym.sandbox._docker_engine import DockerEngine
from envgym.sandbox.machines import Machine, MachineBackend, MachineSpec
from tests.envgym.sandbox.left_behind import left_behind


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


@pytest.fixture(scope="session")
def machines() -> Iterator[MachineBackend]:
    """Give the docker back-end of machines, and check at the end that no machine and no copy is left."""
    pytest.importorskip("docker.errors", reason="the docker back-end needs the extra docker")
    back_end = DockerSandbox()
    reason = back_end.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    before = left_behind()  # the volume that guests run from
    yield back_end
    assert left_behind() == before


@pytest.fixture
def machine(machines: MachineBackend) -> Iterator[Machine]:
    """Give a small machine whose commands run as root."""
    started = machines.start(SMALL)
    yield started
    started.close()


SMALL = MachineSpec(image="envgym-sandbox", user="0", workdir="/work", memory=256 * MIB, disk=64 * MIB, processes=64)
