"""A search: how the episodes of a group are grown from one task.

    envgym train run.yaml --set search.name=examples/plugins/last_turn.py:LastTurn --set search.nodes=3
    envgym eval --model runs/first --search examples/plugins/last_turn.py:LastTurn --search-set nodes=3

`RoundStrategy` plays one whole episode per tree, then asks `decide` where further branches begin. `tree.states` are the
states at which a turn began, in the order in which they were reached.
"""

from typing import ClassVar

from envgym.agents.search.branches import Branch
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.rounds import RoundStrategy


class LastTurn(RoundStrategy):
    """Play the turn that began last again, `nodes` times a round."""

    name: ClassVar[str] = "last_turn"

    def decide(self, tree: SearchTree, count: int, number: int) -> list[Branch]:
        """Begin `count` branches at the newest state."""
        return [tree.add_branch(tree.states[-1]) for _ in range(count)]
