"""What tests of endpoints share."""

from collections.abc import Iterator

import pytest

from tests.agents.policies.fake_server import Server, running


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for one test."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running() as made:
        yield made
