"""Dr. GRPO (2503.20783): no division by the spread, and a constant instead of the row's length.

`objective.max_tokens` is that constant; set it to the longest episode's sampled tokens.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    filter=Choice(name="keep_all"),
    credit=Choice(name="dr_grpo"),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}),
    objective=ObjectiveSettings(aggregation="seq-mean-token-sum-norm", max_tokens=512),
)
