"""DeepSearch's replay: solutions that a search found of hard prompts, in place of another search."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.core.turns import is_success
from envgym.seeds import generator
from envgym.trainer.methods.protocols import TaskRequest
from envgym.trainer.methods.replay.base import BufferedReplay, with_replayed
from envgym.trainer.methods.replay.buffer import ReplayEntry, keep_leaves

REPLAYED = "replayed"
"""In the metadata of a request: how many solutions join its group."""


class Solutions(BufferedReplay):
    """Keep the solved paths of hard prompts; a prompt with solutions gets them and a few direct episodes, no search.

    With c solutions of a prompt in the buffer and a group of B episodes, d = max(1, round(β (B - c))) episodes are
    played directly, and min(c, B - d) solutions, drawn without replacement, join them. A prompt without a solution is
    searched as before. A group is hard where at least one episode is right and at most a share of `hard_below` is; the
    priority of a solution is the share that is not right, so that the hardest stay longest.

    Source: 2509.25454, with the threshold as in the authors' code (at most 25 %). The paper says only that direct
    episodes grow fewer as more is cached; d is our choice of it, which always leaves one, so that a group of right
    solutions alone, which has no gradient, does not come about. Deviations: the buffer is filled in every step instead
    of after a phase; rewards are those that were recorded; garbled or endlessly repeating failures are not removed.
    """

    reads_env_rewards: ClassVar[bool] = True
    direct_share: float = Field(default=0.5, gt=0, le=1)
    """β: share of the places that no solution takes which are played directly."""
    hard_below: float = Field(default=0.25, ge=0, lt=1)
    """Largest share of right episodes of a hard prompt."""
    success_at: float = 1.0
    """An episode is right when its reward is at least this."""

    def plan(self, step: int, requests: Sequence[TaskRequest], task_keys: Sequence[str]) -> list[TaskRequest]:
        """Replace the search of prompts that have solutions by fewer direct episodes."""
        return [
            self._planned(request, len(self.candidates(step, task_key)))
            for request, task_key in zip(requests, task_keys, strict=True)
        ]

    def _planned(self, request: TaskRequest, cached: int) -> TaskRequest:
        if not cached:
            return request
        direct = max(1, round(self.direct_share * (request.group_size - cached)))
        replayed = min(cached, request.group_size - direct)
        metadata = {**request.metadata, REPLAYED: replayed}
        return replace(request, group_size=direct, direct=True, metadata=metadata)

    def join(self, step: int, requests: Sequence[TaskRequest], groups: Sequence[Group], *, seed: int) -> list[Group]:
        """Join solutions to the groups whose search was left out."""
        return [
            self._joined(step, request, group, seed) if request.direct else group
            for request, group in zip(requests, groups, strict=True)
        ]

    def _joined(self, step: int, request: TaskRequest, group: Group, seed: int) -> Group:
        count, pool = request.metadata.get(REPLAYED, 0), self.candidates(step, group.trees[0].task_key)
        assert isinstance(count, int), "planned here"
        return with_replayed(group, pool.draw(count, generator(seed, "replay", step, group.key)))

    def entries(self, step: int, group: Group) -> Iterator[ReplayEntry]:
        """Return the solved paths of a hard prompt, one entry for each."""
        right = [episode for episode in group.valid if is_success(episode.reward, self.success_at)]
        share = len(right) / max(len(group.valid), 1)
        for episode in right if share <= self.hard_below else ():
            tree = keep_leaves(episode.tree, [episode.leaf], id=f"{episode.tree.id}/{episode.leaf}")
            yield ReplayEntry(tree=tree, step=step, priority=1 - share)
