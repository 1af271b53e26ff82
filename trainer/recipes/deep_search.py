"""DeepSearch (2509.25454): trees grown from the best of all nodes, and credit by what was backed up on them.

Eight episodes a tree, as in the paper; clip-higher with a dual clip of 10, token-mean, no KL term. Ours leaves out the
penalty for long episodes (`shaping.name=overlong` adds it), the choice of hard prompts, and the replay of solutions.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice.model_validate(
        {"name": "mcts", "simulations": 8, "rule": "uct", "c": 2.0, "frontier": True, "backup": "decayed"}
    ),
    filter=Choice(name="zero_variance"),
    credit=Choice(name="deep_search"),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0}),
    objective=ObjectiveSettings(aggregation="token-mean", shared_tokens="per_path"),
)
