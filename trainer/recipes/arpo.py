"""ARPO (2507.19849): more branches where the policy got unsure after a tool call, and GRPO on their leaves.

For envs with tools. No KL term, and token-mean, as in `grpo`.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice.model_validate({"name": "surprisal_fork", "where": "after_tool", "nodes": 1, "branches": 1}),
    filter=Choice(name="zero_variance"),
    credit=Choice(name="grpo"),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}),
    objective=ObjectiveSettings(aggregation="token-mean", shared_tokens="per_path"),
)
