"""RLOO (2402.14740): leave-one-out baseline and the plain policy gradient, summed over tokens."""

from envgym.trainer.plugins import Choice
from envgym.trainer.settings import ObjectiveSettings, Recipe

RECIPE = Recipe(
    filter=Choice(name="keep_all"),
    credit=Choice(name="rloo"),
    loss=Choice(name="reinforce"),
    objective=ObjectiveSettings(aggregation="seq-mean-token-sum"),
)
