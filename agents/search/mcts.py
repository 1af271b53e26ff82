"""`mcts`: Monte Carlo tree search over turns.

A simulation descends by UCT or PUCT to a node that may have another child, samples one there, values it, and backs the
value up. Or, with `frontier`, it begins at the best node of the whole tree. Source: 2509.25454.

Without `value` every simulation plays an episode to its end and backs its reward up: for training, and oracle-selected
at test time. With `value` (a `ValueFn`, learned or a rule) it plays one turn, or a few (`roll_forward`), and no reward
is looked at. Source: 2406.03816, whose backup is the mean over visits but for the node's own value, which ours counts
once. Its first simulation is a whole episode, so there is always an answer.

Children that sampled the same tokens are one child, visited more than once.
"""

from typing import Any, ClassVar

from envgym.agents.agent import AgentSettings
from envgym.agents.search.base import Selection, TreeStrategy
from envgym.agents.search.expanding import keep
from envgym.agents.search.growth import Growth
from envgym.agents.search.signals import Hook, Signal, ValueFn, signal, value_fn
from envgym.agents.search.simulations import Node, Simulations, SimulationSettings
from envgym.env import Env
from envgym.errors import SettingsError, sentence


class Mcts(SimulationSettings, TreeStrategy):
    """Search by simulations."""

    name: ClassVar[str] = "mcts"
    select: str = "value"
    """By what `answer` chooses: `value` is the `ValueFn`, and the majority where there is none."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Refuse what cannot work. Raises: SettingsError."""
        if self.simulations is None and not self.budget.is_limited:
            do = "set its budget, such as budget.tokens_generated=4096"
            raise SettingsError(sentence("simulations=None", "go with a budget", "none", where=self.name, do=do))
        if self.backup == "decayed" and self.value is not None:
            do = "set backup=mean, or leave value out"
            raise SettingsError(sentence("backup=decayed", "go with rewards", "a value", where=self.name, do=do))
        super().check(env, agent, group_size=group_size)

    @property
    def selection(self) -> Selection:
        """How `answer` chooses; a search that was led by rewards is an oracle's, whatever chooses at the end."""
        by = self.select if self.select != "value" else "majority" if self.value is None else self.value
        return Selection(by=by, is_oracle=self.value is None or self.signal().is_oracle)

    def signal(self) -> Signal:
        """Return what chooses."""
        if self.select != "value":
            return signal(self.select)
        return signal("majority") if self.value is None else Hook(value_fn(self.value, where="value"))

    def value_fns(self) -> list[ValueFn]:
        """Return what leads and what chooses."""
        leads = [] if self.value is None else [value_fn(self.value, where="value")]
        return leads + (super().value_fns() if self.select != "value" else [])

    def num_trees(self, group_size: int) -> int:
        """Return 1. Raises: SettingsError: a group of one."""
        if group_size < 2:
            do = "set rollout.group_size to at least 2"
            raise SettingsError(sentence("group", "hold at least 2 episodes", group_size, where=self.name, do=do))
        return 1

    async def expand(self, growth: Growth, *, leaves: int | None) -> None:
        """Run the simulations, then finish what is missing of the leaves, the most visited places first."""
        assert growth.root is not None, "the tree has begun"
        search = Simulations(self, growth, Node(link=growth.root.link, place=growth.root))
        await search.play_out(search.root)
        if self.deterministic:
            await search.in_waves()
        else:
            await search.as_they_end()
        await search.finish(leaves or 1)
        search.annotate()
        if leaves is not None:
            keep(growth, leaves)
