"""An annotator: a named value for every episode of a finished group, while other groups are still sampled.

    envgym train run.yaml --set 'annotate=[examples/plugins/brevity_annotator.py:Brevity]' \
        --set shaping.name=annotated --set shaping.annotation=brevity --set shaping.coef=0.1

An annotator takes the group and a context (task, named models, policy, agent), and returns the group with annotations,
which `annotate_trees` adds. One that asks a model of the run awaits it, and names it in `required_models`.
"""

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.trainer.methods.annotators.base import AnnotateContext, annotate_trees


class Brevity(Settings):
    """Value an episode by 1 / (1 + n / scale), n its sampled tokens."""

    name: str = "brevity"
    """Of the annotations."""
    scale: float = Field(default=16.0, gt=0)
    """Tokens at which the value is one half."""

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        """Return the group with a value for every valid episode."""
        found: dict[str, list[Annotation]] = {tree.id: [] for tree in group.trees}
        for episode in group.valid:
            value = 1 / (1 + episode.num_sampled / self.scale)
            item = Annotation(name=self.name, level="episode", node=episode.leaf, value=value)
            found[episode.tree.id].append(item)
        return annotate_trees(group, found)
