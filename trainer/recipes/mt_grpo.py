"""MT-GRPO (2505.11821): a turn's own reward beside the outcome. For envs that pay turns before the last.

No KL term, and token-mean, as in `grpo`.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice(name="chain"),
    filter=Choice(name="keep_all"),
    credit=Choice(name="mt_grpo"),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}),
    objective=ObjectiveSettings(aggregation="token-mean"),
)
