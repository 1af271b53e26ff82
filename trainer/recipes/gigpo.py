"""GiGPO (2505.10978): the episode against its group, and each turn against the turns that began in the same state.

For envs whose observation says where the world stands. No KL term, and token-mean, as in `grpo`.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice(name="chain"),
    filter=Choice(name="keep_all"),
    credit=Choice.model_validate({"name": "gigpo", "discount": 0.95, "step_weight": 1.0}),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}),
    objective=ObjectiveSettings(aggregation="token-mean"),
)
