"""Scaf-GRPO's rollouts: a failed group gets the weakest hint that makes one episode succeed."""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field

from envgym.agents.loop.hints import PLAIN
from envgym.core.trajectory import Group
from envgym.errors import InvalidInput
from envgym.seeds import generator
from envgym.settings import Settings
from envgym.trainer.methods.allocators.base import is_success
from envgym.trainer.methods.protocols import TaskRequest


class ScafGrpo(Settings):
    """Where all episodes fail, sample single ones with stronger and stronger hints; the first success joins the group.

    A task's hints are tiers, such as knowledge, planning and solution, each a list; hint k of a tier is the first k of
    its list. They are tried one after the other, up to a success, which takes the place of a failed episode
    drawn at random. Its context keeps the hint, in the ratio and in training. In the first `warmup_steps` no one gets
    hints.

    Source: 2510.19807, the paper's text, in which hints begin after 15 % of the steps; that it also waits until newly
    solved tasks become rare is not built, nor in the authors' code, whose steps of warm-up are 50.
    """

    key: str = "hints"
    """Key of the tiers in a task's metadata: name -> list of texts, from weak to strong."""
    warmup_steps: int = Field(default=50, ge=0)
    """Train steps without hints."""
    threshold: float = 0.5
    """An episode succeeds when its reward is above this."""

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        """Return one episode with the next hint, while none has succeeded."""
        if step < self.warmup_steps or any(is_success(episode, self.threshold) for episode in group.valid):
            return None
        hints = self._hints(request)
        return replace(request, group_size=1, hint=hints[round]) if round < len(hints) else None

    def finish(self, request: TaskRequest, group: Group) -> Group:
        """Return the group in which a hinted success, if there is one, has replaced a failure."""
        hinted = [tree for tree in group.trees[request.group_size :] if PLAIN in tree.prompts]
        plain = [tree for tree in group.trees if tree not in hinted]
        helped = next((tree for tree in hinted if self._succeeds(group, tree.id)), None)
        if helped is not None:
            valid = {episode.tree.id for episode in group.valid}
            failed = [place for place, tree in enumerate(plain) if tree.id in valid] or list(range(len(plain)))
            place = int(generator("scaf_grpo", group.key).choice(failed))
            plain = [*plain[:place], *plain[place + 1 :], helped]
        return replace(group, trees=tuple(plain))

    def _succeeds(self, group: Group, tree_id: str) -> bool:
        return any(is_success(episode, self.threshold) for episode in group.valid if episode.tree.id == tree_id)

    def _hints(self, request: TaskRequest) -> list[str]:
        """Return the hints from weak to strong. Raises: InvalidInput: the task's are not tiers of texts."""
        assert request.task is not None, "an allocator is given the task"
        tiers = request.task.metadata.get(self.key, {})
        where, do = f"task {request.task.id}, metadata {self.key}", "write a list of texts for each tier"
        if not isinstance(tiers, Mapping):
            raise InvalidInput.of("hints", "be tiers of texts", tiers, where=where, do=do)
        hints: list[str] = []
        for name, texts in tiers.items():
            if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
                raise InvalidInput.of(f"tier {name}", "be a list of texts", texts, where=where, do=do)
            hints += ["\n".join(map(str, texts[: place + 1])) for place in range(len(texts))]
        return hints
