"""Scaf-GRPO's rollouts: a failed group gets the weakest hint that makes one episode succeed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from envgym.agents.loop.hints import PLAIN
from envgym.core.task_needs import TaskNeed
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, trajectories
from envgym.core.tree import Tree
from envgym.errors import InvalidInput
from envgym.seeds import generator
from envgym.trainer.methods.allocators.base import is_success, without_episode
from envgym.trainer.methods.protocols import GroupSource, TaskRequest
from envgym.trainer.methods.requirements import Choices, Fault


class ScafGrpo(GroupSource):
    """Where all episodes fail, sample single ones with stronger and stronger hints; the first success joins the group.

    A task's hints are tiers, such as knowledge, planning and solution, each a list; hint k of a tier is the first k of
    its list. They are tried one after the other, up to a success, which takes the place of a failed episode
    drawn at random. Its context keeps the hint, in the ratio and in training. In the first `warmup_steps` no one gets
    hints, nor does a group that began with one. With a search that grows trees a hinted episode is a chain beside them.

    Source: 2510.19807, the paper's text, in which hints begin after 15 % of the steps; that it also waits until newly
    solved tasks become rare is not built, nor in the authors' code, whose steps of warm-up are 50.
    """

    fixed_prompts: ClassVar[tuple[str, ...]] = (PLAIN,)
    key: str = "hints"
    """Key of the tiers in a task's metadata: name -> list of texts, from weak to strong."""
    warmup_steps: int = Field(default=50, ge=0)
    """Train steps without hints."""
    threshold: float = 0.5
    """An episode succeeds when its reward is above this."""

    def task_needs(self) -> Sequence[TaskNeed]:
        do = "set allocator.key to a key that holds tiers of hints, or add them to the tasks"
        return [TaskNeed(key=self.key, read=self._hints, do=do)]

    def requires(self, choices: Choices) -> Fault | None:
        """Require train steps after the warm-up, before which no one gets hints."""
        warmup, steps, do = self.warmup_steps, choices.num_steps, "lower it, or raise run.steps"
        must = f"be below run.steps ({steps}) with allocator scaf_grpo, which gives no hints before"
        return Fault.unless(warmup < steps, "allocator.warmup_steps", must, warmup, do)

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        """Return one episode with the next hint, while none has succeeded."""
        if request.hint is not None or step < self.warmup_steps:
            return None
        if any(is_success(episode, self.threshold) for episode in group.valid):
            return None
        assert request.task is not None, "an allocator is given the task"
        hints = self._hints(request.task)
        return replace(request, group_size=1, hint=hints[round], direct=True) if round < len(hints) else None

    def finish(self, request: TaskRequest, group: Group) -> Group:
        """Return the group in which a hinted success, if there is one, has replaced a failure."""
        hinted = [tree for tree in group.trees if request.hint is None and PLAIN in tree.prompts]
        plain = replace(group, trees=tuple(tree for tree in group.trees if tree not in hinted))
        helped = next((tree for tree in hinted if self._succeeds(tree)), None)
        if helped is None:
            return plain
        failed = plain.valid or plain.trajectories
        place = int(generator("scaf_grpo", group.key).choice(len(failed)))
        others = without_episode(plain, failed[place])
        return replace(others, trees=(*others.trees, helped))

    def _succeeds(self, tree: Tree) -> bool:
        return any(is_success(episode, self.threshold) for episode in trajectories(tree))

    def _hints(self, task: Task) -> list[str]:
        """Return the hints from weak to strong. Raises: InvalidInput: the task's are not tiers of texts."""
        tiers = task.metadata.get(self.key, {})
        where, do = f"task {task.id}, metadata {self.key}", "write a list of texts for each tier"
        if not isinstance(tiers, Mapping):
            raise InvalidInput.of("hints", "be tiers of texts", tiers, where=where, do=do)
        hints: list[str] = []
        for name, texts in tiers.items():
            if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
                raise InvalidInput.of(f"tier {name}", "be a list of texts", texts, where=where, do=do)
            hints += ["\n".join(map(str, texts[: place + 1])) for place in range(len(texts))]
        return hints
