"""The plug-in point of replay, and what replays that keep a buffer share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from pydantic import Field, PrivateAttr

from envgym.agents.loop.agent import Agent
from envgym.config.plugins import PluginKind
from envgym.core.trajectory import Group
from envgym.core.tree import Source, Tree
from envgym.trainer.methods.protocols import Checkpointed, GroupSource, TaskRequest
from envgym.trainer.methods.replay.buffer import ReplayBuffer, ReplayEntry
from envgym.trainer.methods.replay.recorded import check_vocabulary
from envgym.trainer.tables import KINDS


@runtime_checkable
class Replay(Checkpointed, Protocol):
    """Keeps what was sampled, and trains some of it again; by the env's rewards, if `reads_env_rewards` is True."""

    def check_agent(self, agent: Agent) -> None:
        """Refuse an agent that cannot learn from what is kept. Raises: SettingsError. Default: any can."""
        return

    def plan(self, step: int, requests: Sequence[TaskRequest], task_keys: Sequence[str]) -> Sequence[TaskRequest]:
        """Change the requests of a step before it is sampled, such as to leave out what `join` will bring.

        Args:
            step: number of the train step, from 1.
            requests: of the curriculum.
            task_keys: content hash of the task of each.

        Returns: one request for each, of the same task. Default: as they are.
        """
        return requests

    def join(self, step: int, requests: Sequence[TaskRequest], groups: Sequence[Group], *, seed: int) -> list[Group]:
        """Return the groups of a step with the trees that are replayed in it, their `source` REPLAY.

        The filter comes after it. Statistics and metrics of sampling count `groups` as they came.

        Args:
            step: number of the train step, from 1.
            requests: of the sampled groups.
            groups: as sampled, one for each request.
            seed: the run's, from which every draw derives.

        Returns:
            One group for each of `groups`, in their order and with their keys, then groups of replayed trees alone.
            Tree ids are unique in a step.
        """
        ...

    def add(self, step: int, groups: Sequence[Group]) -> None:
        """Take in what a step has sampled; called after `join` of that step, with the groups as they were sampled."""
        ...


REPLAY: Final[PluginKind[Replay]] = KINDS["replay"]


class BufferedReplay(GroupSource, ABC):
    """Settings and state of a replay with one buffer."""

    capacity: int = Field(default=4096, ge=1)
    """Most trees that are kept; beyond it those of least priority leave, of them the oldest."""
    max_age: int | None = Field(default=None, ge=0)
    """Train steps after which a tree is not replayed any more; null: never."""
    _buffer: ReplayBuffer = PrivateAttr(default=ReplayBuffer())

    def check_agent(self, agent: Agent) -> None:
        """Refuse an agent of another tokenizer. Raises: SettingsError."""
        check_vocabulary((entry.tree for entry in self._buffer.entries), agent, where=f"replay {type(self).__name__}")

    def add(self, step: int, groups: Sequence[Group]) -> None:
        """Keep what `entries` chooses, and drop what has grown too old."""
        entries = [entry for group in groups for entry in self.entries(step, group)]
        young = self._buffer.younger(step=step, max_age=self.max_age)
        self._buffer = young.add(entries, capacity=self.capacity)

    def plan(self, step: int, requests: Sequence[TaskRequest], task_keys: Sequence[str]) -> Sequence[TaskRequest]:
        """Sample what the curriculum asks for."""
        return requests

    @abstractmethod
    def entries(self, step: int, group: Group) -> Iterable[ReplayEntry]:
        """Return the entries of a sampled group that are kept."""

    def candidates(self, step: int, task_key: str) -> ReplayBuffer:
        """Return the entries that may be replayed for a task in a step."""
        return self._buffer.younger(step=step, max_age=self.max_age).of_task(task_key)

    def save(self, folder: Path) -> None:
        self._buffer.save(folder)

    def load(self, folder: Path) -> None:
        self._buffer = ReplayBuffer.load(folder)


def with_replayed(group: Group, entries: Sequence[ReplayEntry]) -> Group:
    """Return a group with replayed trees after its own."""
    replayed = [replayed_tree(entry, f"{group.key}/replay/{number:02d}") for number, entry in enumerate(entries)]
    return replace(group, trees=(*group.trees, *replayed))


def replayed_tree(entry: ReplayEntry, id: str) -> Tree:
    """Return the tree of an entry as it trains again."""
    return replace(entry.tree, id=id, source=Source.REPLAY)
