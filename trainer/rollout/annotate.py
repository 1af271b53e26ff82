"""The annotate stage: runs a run's annotators on every group as soon as its trees have ended."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from envgym.agents.search import RolloutContext
from envgym.core.json_types import visible
from envgym.core.tasks import Task
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation, Tree
from envgym.errors import InfrastructureError, InvalidInput
from envgym.trainer.methods.annotators.base import AnnotateContext, Annotator, annotate_trees


class AnnotatedGroup(NamedTuple):
    """A group, and how long its annotators took."""

    group: Group
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateStage:
    """The annotators of a run."""

    annotators: Mapping[str, Annotator]
    """By the name that a failure is recorded under; each sees what those before it wrote."""
    models: Mapping[str, object]
    """The named models of the run."""

    async def annotate(self, group: Group, rollout: RolloutContext, *, step: int, task: Task) -> AnnotatedGroup:
        """Annotate a group. Raises: InvalidInput: an annotator changed more than annotations."""
        started = time.perf_counter()
        context = AnnotateContext(
            step=step,
            task=task,
            models={**self.models, "policy": rollout.policy},
            policy=rollout.policy,
            agent=rollout.agent,
        )
        for name, annotator in self.annotators.items():
            try:
                annotated = await annotator(group, context)
            except InfrastructureError as error:
                annotated = _failed(group, name, visible(str(error)))
            _check_unchanged(group, annotated, name)
            group = annotated
        return AnnotatedGroup(group, time.perf_counter() - started)


def _failed(group: Group, name: str, reason: str) -> Group:
    return annotate_trees(
        group,
        {
            tree.id: [
                Annotation(name=name, level="episode", node=leaf, value=None, error=reason) for leaf in tree.leaves
            ]
            for tree in group.trees
        },
    )


def _check_unchanged(before: Group, after: Group, name: str) -> None:
    if len(before.trees) != len(after.trees) or any(
        not _adds_only(old, new) for old, new in zip(before.trees, after.trees, strict=True)
    ):
        do = "return the group with `annotate_trees`"
        must, got = "add annotations to the trees and change nothing else", "other trees"
        raise InvalidInput.of(f"annotator {name}", must, got, where=f"group {before.key}", do=do)


def _adds_only(old: Tree, new: Tree) -> bool:
    prefix = new.annotations[: len(old.annotations)]
    return old.id == new.id and old.nodes is new.nodes and prefix == old.annotations
