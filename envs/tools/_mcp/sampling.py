"""What all generators of tasks draw with, and the words they use."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from envgym.authoring.sampler import Sampler, Unsuitable
from envgym.envs.data_files import Wordings, read_toml
from envgym.envs.tools._mcp.plans import McpTaskPlan
from envgym.envs.tools._mcp.servers.protocol import Json, Tables
from envgym.envs.tools._office import words

WORDS: Json = read_toml("tools/data/mcp_words.toml")
request = Wordings("tools/data/mcp_requests.toml")


class ServerSampler(Sampler):
    """A generator, and the records that are drawn for a task."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.tables: Tables = {}

    def people(self, count: int) -> list[str]:
        """Draw names of people, no two with a first or last name in common."""
        both = zip(self.some(words.FIRST_NAMES, count), self.some(words.LAST_NAMES, count), strict=True)
        return [f"{first} {last}" for first, last in both]

    def goal(self) -> Tables:
        return copy.deepcopy(self.tables)


TaskKind = Callable[[ServerSampler], McpTaskPlan]
"""Draws records and a task on them. Raises: Unsuitable."""


def suitable(holds: Any) -> None:  # as `if` takes it
    """Raise Unsuitable unless something holds."""
    if not holds:
        raise Unsuitable
