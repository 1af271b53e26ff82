"""The lane that has what an environment needs."""

from collections.abc import Iterable
from typing import Any

import pytest

from envgym.registry import find

_LANES = {
    "docker": pytest.mark.docker,
    "science": pytest.mark.java,
    "textworld": pytest.mark.java,
    "web": pytest.mark.web,
}
"""Extra that an environment requires -> mark."""


def marks_of(env_id: str) -> list[pytest.MarkDecorator]:
    """Return the mark of an environment's lane; none where core has what it needs."""
    mark = _LANES.get(find(env_id).requires or "")
    return [] if mark is None else [mark]


def env_params(env_ids: Iterable[str]) -> list[Any]:
    """Return ids of environments as parameters of a test, each in its lane."""
    return [pytest.param(env_id, marks=marks_of(env_id), id=env_id) for env_id in env_ids]
