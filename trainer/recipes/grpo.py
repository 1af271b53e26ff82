"""GRPO (2402.03300), with DAPO's token-mean and group filter (2503.14476) and no KL term."""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    filter=Choice(name="zero_variance"),
    credit=Choice(name="grpo"),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}),
    objective=ObjectiveSettings(aggregation="token-mean"),
)
