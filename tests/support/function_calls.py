"""Talks about calls of functions: what an agent says who makes given calls in the turns of a user."""

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import pytest

from envgym.conformance.agents import Agent
from envgym.core.messages import ToolCall
from envgym.envs.tools._bfcl import source
from envgym.parsing import tool_call_action

NEEDS_BFCL = pytest.mark.skipif(
    any(find_spec(name) is None for name in source.NEEDED), reason="needs envgym[tools] and bfcl-eval"
)
EVERY = 1 if "ENVGYM_BFCL_ALL" in os.environ else 8
"""Of so many questions one is compared with the leaderboard's checker."""
Turns = list[list[ToolCall]]
"""The calls of each turn of the user."""


def actions_of(turns: Turns) -> Iterator[str]:
    """Yield the calls of each turn in one message, and a message that gives the turn back."""
    for calls in turns:
        if calls:
            yield "\n".join(tool_call_action(call.name, **call.arguments) for call in calls)
        yield "Done."


def says(actions: Sequence[str]) -> Agent:
    return lambda turn, observation: actions[turn]
