"""TreeRL (2506.11902): branches at the least sure tokens, and what every node adds to the value of the tree.

The upper clip is 1.3 times the lower, as in the paper. No KL term.
"""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice.model_validate({"name": "surprisal_fork", "where": "token", "nodes": 2, "branches": 2, "rounds": 1}),
    filter=Choice(name="zero_variance"),
    credit=Choice.model_validate({"name": "tree_rl", "shared": 0.5}),
    loss=Choice.model_validate({"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.26}),
    objective=ObjectiveSettings(aggregation="seq-mean-token-mean", shared_tokens="per_path"),
)
