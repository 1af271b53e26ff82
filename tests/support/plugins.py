"""The trainer's own methods, built or to be built, by name."""

from collections.abc import Callable, Mapping

from envgym.agents.catalog import SEARCH
from envgym.agents.search import Strategy
from envgym.plugins import Choice
from envgym.trainer.catalog import CORRECTION, CREDIT, FILTER, LOSS
from envgym.trainer.methods.corrections import Correction
from envgym.trainer.methods.losses import PolicyLoss
from envgym.trainer.methods.protocols import Credit, CriticCredit, Filter

CREDITS: Mapping[str, Callable[..., Credit]] = {
    name: CREDIT.load(name) for name in CREDIT.table if not isinstance(CREDIT.build(Choice(name=name)), CriticCredit)
}
"""Name -> class, of the credits without a critic."""
CRITIC_CREDITS: Mapping[str, Callable[..., CriticCredit]] = {
    name: CREDIT.load(name) for name in CREDIT.table if name not in CREDITS
}
"""Name -> class, of the credits with a critic."""
LOSSES: Mapping[str, Callable[..., PolicyLoss]] = {name: LOSS.load(name) for name in LOSS.table}
CORRECTIONS: Mapping[str, Callable[..., Correction]] = {name: CORRECTION.load(name) for name in CORRECTION.table}
FILTERS: Mapping[str, Callable[..., Filter]] = {name: FILTER.load(name) for name in FILTER.table}
STRATEGIES: Mapping[str, type[Strategy]] = {name: SEARCH.load(name) for name in SEARCH.table}
