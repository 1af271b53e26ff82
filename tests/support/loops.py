"""Calling a function as a cell of a notebook does: inside a running event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_a_running_loop(function: Callable[[], T]) -> T:
    """Return what `function` returns, called from a coroutine."""

    async def cell() -> T:
        return function()

    return asyncio.run(cell())
