"""DAPO (2503.14476): clip-higher, dynamic sampling, token-mean over the update, soft penalty for long episodes; no KL.

Set `shaping.max_tokens` to the most tokens that an episode may sample.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe, ResamplingSettings

RECIPE = Recipe(
    search=Choice(name="chain"),
    resampling=ResamplingSettings(rounds=3),
    filter=Choice(name="zero_variance"),
    shaping=Choice.model_validate({"name": "overlong", "max_tokens": 512, "buffer": 128}),
    credit=Choice(name="grpo"),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}),
    objective=ObjectiveSettings(aggregation="token-mean"),
)
