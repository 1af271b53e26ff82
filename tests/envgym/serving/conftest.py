"""A server of the environments that tests count turns with."""

from collections.abc import Iterator

import pytest

from envgym.serving.server import EnvServer
from tests.support.env_server import COUNTER, SLOW_COUNTER, running_server


@pytest.fixture
def server() -> Iterator[EnvServer]:
    with running_server(COUNTER, SLOW_COUNTER) as server:
        yield server
