"""The trainer's own methods, built or to be built, by name."""

from collections.abc import Callable, Mapping

from envgym.agents.search import Strategy
from envgym.agents.search.protocol import SEARCH
from envgym.config.plugins import Choice
from envgym.trainer.methods.corrections import Correction
from envgym.trainer.methods.corrections.base import CORRECTION
from envgym.trainer.methods.losses import PolicyLoss
from envgym.trainer.methods.losses.base import LOSS
from envgym.trainer.methods.protocols import CREDIT, FILTER, BatchCredit, Credit, CriticCredit, Filter

_CREDITS = {name: CREDIT.build(Choice(name=name)) for name in CREDIT.table}
CREDITS: Mapping[str, Callable[..., Credit]] = {
    name: CREDIT.load(name) for name, credit in _CREDITS.items() if isinstance(credit, Credit)
}
"""Name -> class, of the credits that see one group at a time."""
BATCH_CREDITS: Mapping[str, Callable[..., BatchCredit]] = {
    name: CREDIT.load(name)
    for name, credit in _CREDITS.items()
    if isinstance(credit, BatchCredit) and not isinstance(credit, CriticCredit | Credit)
}
"""Name -> class, of the credits that need all groups of a step."""
CRITIC_CREDITS: Mapping[str, Callable[..., CriticCredit]] = {
    name: CREDIT.load(name) for name, credit in _CREDITS.items() if isinstance(credit, CriticCredit)
}
"""Name -> class, of the credits with a critic."""
LOSSES: Mapping[str, Callable[..., PolicyLoss]] = {name: LOSS.load(name) for name in LOSS.table}
CORRECTIONS: Mapping[str, Callable[..., Correction]] = {name: CORRECTION.load(name) for name in CORRECTION.table}
FILTERS: Mapping[str, Callable[..., Filter]] = {name: FILTER.load(name) for name in FILTER.table}
STRATEGIES: Mapping[str, type[Strategy]] = {name: SEARCH.load(name) for name in SEARCH.table}
