"""Tests of code environments run where the sandbox can."""

import pytest

from envgym.sandbox import BwrapSandbox, why_unusable

_reason: list[str | None] = []


@pytest.fixture(autouse=True)
def sandbox() -> None:
    if not _reason:
        _reason.append(why_unusable(BwrapSandbox()))
    if _reason[0] is not None:
        pytest.skip(_reason[0])
