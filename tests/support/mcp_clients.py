"""The SDK's client of a server that it starts: `envgym` with some words."""

import sys
from collections.abc import Sequence
from typing import Any

from tests.support.sources import ROOT


def started(words: Sequence[str]) -> Any:  # a transport of the SDK
    """Return what the SDK's client takes to start `envgym WORDS`.

    The server writes its errors where the process does. The SDK would take what `sys.stderr` was when it was imported,
    which may be the closed file of a test that captures output.
    """
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    parameters = StdioServerParameters(command=sys.executable, args=["-m", "envgym", *words], cwd=ROOT)
    assert sys.__stderr__ is not None
    return stdio_client(parameters, errlog=sys.__stderr__)
