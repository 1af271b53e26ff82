"""Guide-GRPO's rollouts: groups that fail are sampled again with a hint, and learned without it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from envgym.agents.loop.hints import PLAIN
from envgym.core.segments import Origin
from envgym.core.task_needs import TaskNeed, metadata_text
from envgym.core.trajectory import Group
from envgym.core.tree import Source, Tree
from envgym.trainer.methods.allocators.base import is_success
from envgym.trainer.methods.protocols import GroupSource, TaskRequest
from envgym.trainer.methods.requirements import Choices, Fault


class GuideGrpo(GroupSource):
    """Sample a group without a success once more, with the task's hint; keep those episodes if they differ.

    Where the hinted episodes neither all fail nor all succeed, they are the whole group: compared with each other, and
    put behind the context without the hint, in which they then train (`source` REPLAY: the policy sampled them, in
    another context). Else the failed group stays. The ratio of `loss.name=guide` is that of the plain context to the
    hinted one. A group whose task has no hint, or that began with one, stays as it is.

    Source: 2506.13923, the authors' code; every failed group is sampled again, whatever the others do.
    """

    fixed_prompts: ClassVar[tuple[str, ...]] = ("hinted",)
    key: str = "hint"
    """Key of the hint in a task's metadata."""
    threshold: float = 0.5
    """An episode succeeds when its reward is above this."""

    def task_needs(self) -> Sequence[TaskNeed]:
        do = "set allocator.key to a key that holds a hint, or add hints to the tasks"
        return [TaskNeed(key=self.key, read=partial(metadata_text, key=self.key), do=do)]

    def requires(self, choices: Choices) -> Fault | None:
        """Require a loss that weighs hinted episodes, which train in another context, and no correction."""
        if not getattr(choices.loss, "weighs_hints", False):
            return Fault("loss", "be guide with allocator guide", choices.names["loss"], "set loss.name=guide")
        must = "be none with allocator guide, because the sampler's log-probs belong to another context"
        is_none, got = choices.correction.is_identity, choices.names["correction"]
        return Fault.unless(is_none, "correction", must, got, "set correction.name=none")

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        """Return the same group with the hint, once, where no episode succeeded."""
        del step
        if round > 0 or request.hint is not None:
            return None
        assert request.task is not None, "an allocator is given the task"
        hint = metadata_text(request.task, self.key)
        return None if hint is None or self._num_successes(group) else replace(request, hint=hint)

    def finish(self, request: TaskRequest, group: Group) -> Group:
        """Return the hinted episodes behind the plain context, or the plain ones."""
        plain = [tree for tree in group.trees if request.hint is not None or PLAIN not in tree.prompts]
        hinted = replace(group, trees=tuple(tree for tree in group.trees if tree not in plain))
        if 0 < self._num_successes(hinted) < len(hinted.valid):
            return replace(hinted, trees=tuple(map(without_hint, hinted.trees)))
        return replace(group, trees=tuple(plain))

    def _num_successes(self, group: Group) -> int:
        return sum(is_success(episode, self.threshold) for episode in group.valid)


def without_hint(tree: Tree) -> Tree:
    """Return a hinted tree behind the context that it would have without the hint; that with it is kept as `hinted`."""
    root = tree.nodes[0]
    segments = tuple(part for part in root.edge.segments if part.origin is not Origin.INJECTED)
    assert tuple(token for part in segments for token in part.token_ids) == tree.prompts[PLAIN], "marked as it differs"
    hinted = tuple(token for part in root.edge.segments for token in part.token_ids)
    others = {name: tokens for name, tokens in tree.prompts.items() if name != PLAIN}
    nodes = (replace(root, edge=replace(root.edge, segments=segments)), *tree.nodes[1:])
    return replace(tree, nodes=nodes, source=Source.REPLAY, prompts={**others, "hinted": hinted})
