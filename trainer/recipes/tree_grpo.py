"""Tree-GRPO (2509.21240): trees expanded at random turns, advantages within the tree and within the group.

Two places a round, one round; as many trees as the group's size needs. No KL term.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice.model_validate({"name": "random_expand", "nodes": 2, "rounds": 1}),
    filter=Choice(name="zero_variance"),
    credit=Choice(name="tree_grpo"),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}),
    objective=ObjectiveSettings(aggregation="token-mean", shared_tokens="per_path"),
)
