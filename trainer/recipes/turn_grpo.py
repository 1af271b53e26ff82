"""Turn-level GRPO: what a turn leads to, against what the other episodes get from that turn on; unbiased."""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    search=Choice(name="chain"),
    filter=Choice(name="keep_all"),
    credit=Choice(name="turn_grpo"),
    loss=Choice(name="reinforce"),
    objective=ObjectiveSettings(aggregation="seq-mean-token-sum"),
)
