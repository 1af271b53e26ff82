"""`mcts`: Monte Carlo tree search over turns.

A simulation descends by UCT or PUCT to a node that may have another child, samples one there, values it, and backs the
value up. Or, with `frontier`, it begins at the best node of the whole tree. Source: 2509.25454.

Without `value` every simulation runs an episode to its end and backs its reward up: for training, and oracle-selected
at test time. With `value` (a `ValueFn`, learned or a rule) it runs one turn, or a few (`roll_forward`), and no reward
is used. Source: 2406.03816, whose backup is the mean over visits but for the node's own value, which ours counts
once. Its first simulation is a whole episode, so there is always an answer.

Children that sampled the same tokens are one child, visited more than once.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.mcts_tree import Simulations, SimulationSettings
from envgym.agents.search.protocol import Selection, TreeStrategy, run_concurrently
from envgym.agents.search.rounds import keep_leaves
from envgym.agents.search.scorers import VALUE_NAME, AnswerScorer, Majority
from envgym.config.plugins import Choice
from envgym.env import Env
from envgym.errors import SettingsError


class Mcts(SimulationSettings, TreeStrategy):
    """Monte Carlo tree search."""

    name: ClassVar[str] = "mcts"
    bound: ClassVar[str] = "simulations"
    select: Choice = Choice(name=VALUE_NAME)
    """By what `answer` chooses: `value` is the `ValueFn`, and the majority where there is none."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        if self.backup == "decayed" and self.value is not None:
            do = "set backup=mean, or leave value out"
            raise SettingsError.of("backup=decayed", "be used with rewards", "a value", where=self.name, do=do)
        super().check(env, agent, group_size=group_size)

    @property
    def selection(self) -> Selection:
        """How `answer` chooses.

        A search that was led by rewards is oracle-selected, whatever chooses at the end. With a `ValueFn` a simulation
        runs only a few turns. Except for the first episode, it can only choose branches that the env ended early: the
        result is selected by ending.
        """
        selection = super().selection
        by = "majority" if self._is_by_default_majority else selection.by
        is_led_by_value = self.value is not None
        return replace(
            selection,
            by=by,
            is_oracle=selection.is_oracle or not is_led_by_value,
            uses_ending=selection.uses_ending or is_led_by_value,
        )

    @cached_property
    def answer_scorer(self) -> AnswerScorer:
        return Majority() if self._is_by_default_majority else super().answer_scorer

    @property
    def _is_by_default_majority(self) -> bool:
        return self.select.name == VALUE_NAME and self.value is None

    async def expand(self, tree: SearchTree, *, leaves: int | None) -> None:
        """Run the simulations, then add the leaves that are missing, from the most visited states first."""
        simulations = Simulations(self, tree, value_fn=self.value_fn)
        await simulations.run_to_end(simulations.root)
        if self.deterministic:
            await simulations.run_in_waves(self.parallel)
        else:
            await run_concurrently([simulations.run_in_waves(1) for _ in range(self.parallel)])
        await simulations.add_leaves(leaves or 1)
        simulations.write_stats()
        if leaves is not None:
            keep_leaves(tree, leaves)
