"""The sandbox that tests share; they are skipped, with the reason, where the machine allows none."""

import pytest

from envgym.sandbox import BwrapSandbox, Sandbox, why_unusable


@pytest.fixture(scope="session")
def bwrap() -> Sandbox:
    sandbox = BwrapSandbox()
    reason = why_unusable(sandbox)
    if reason is not None:
        pytest.skip(reason)
    return sandbox
