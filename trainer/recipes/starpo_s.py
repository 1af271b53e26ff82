"""StarPO-S (2504.20073): PPO on whole episodes with a critic, on the groups whose rewards differ most; no KL.

GAE over sampled tokens with discount and decay 1, so the critic is a baseline of the return. Clip-higher, token-mean.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice(name="chain"),
    filter=Choice.model_validate({"name": "top_variance", "share": 0.25, "by": "count"}),
    credit=Choice.model_validate({"name": "gae_token", "discount": 1.0, "decay": 1.0}),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}),
    objective=ObjectiveSettings(aggregation="token-mean"),
)
