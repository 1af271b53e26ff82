"""A replay: what trains again beside what a step samples.

    envgym train run.yaml --set replay=examples/plugins/last_failure.py:LastFailure --set replay.keep=16

`join` returns the groups of a step with replayed trees, whose `source` says so; `add` takes in what was sampled. `save`
and `load` let a resumed run go on. A subclass of `BufferedReplay` only chooses `entries`, and has a buffer with a
capacity, an age and priorities; this one shows that nothing of it is needed.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import PrivateAttr

from envgym.agents.loop.agent import Agent
from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.core.tree import Source, Tree
from envgym.core.turns import Scored
from envgym.trainer.methods.protocols import TaskRequest
from envgym.trainer.methods.replay.buffer import ReplayBuffer, ReplayEntry


class LastFailure(Settings):
    """Let the last tree of a task that earned nothing train once more when the task comes again."""

    keep: int = 64
    """Tasks that are remembered."""
    _last: dict[str, Tree] = PrivateAttr(default_factory=dict)

    def plan(self, step: int, requests: Sequence[TaskRequest], task_keys: Sequence[str]) -> Sequence[TaskRequest]:
        """Sample what the curriculum asks for."""
        return requests

    def join(self, step: int, requests: Sequence[TaskRequest], groups: Sequence[Group], *, seed: int) -> list[Group]:
        """Join the last failure to the group of its task."""
        return [self._joined(group) for group in groups]

    def _joined(self, group: Group) -> Group:
        tree = self._last.get(group.trees[0].task_key)
        again = [] if tree is None else [replace(tree, id=f"{group.key}/again", source=Source.REPLAY)]
        return replace(group, trees=(*group.trees, *again))

    def add(self, step: int, groups: Sequence[Group]) -> None:
        """Remember the last failure of every task."""
        trees = {
            item.tree.task_key: item.tree
            for group in groups
            for item in group.valid
            if isinstance(item.reward, Scored) and item.reward.value <= 0
        }
        self._last = dict(list({**self._last, **trees}.items())[-self.keep :])

    def check_agent(self, agent: Agent) -> None:
        """Accept any: only this run's own trees are kept."""

    def save(self, folder: Path) -> None:
        """Write the trees."""
        ReplayBuffer(entries=tuple(ReplayEntry(tree=tree, step=0) for tree in self._last.values())).save(folder)

    def load(self, folder: Path) -> None:
        """Read the trees."""
        self._last = {entry.tree.task_key: entry.tree for entry in ReplayBuffer.load(folder).entries}
