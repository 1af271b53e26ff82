"""Search: how the trees of one group are grown from one task. Training and evaluation use the same strategies."""

from envgym.agents.search.beam import Beam
from envgym.agents.search.best_of import BestOf
from envgym.agents.search.chain import Chain
from envgym.agents.search.engine import RolloutContext
from envgym.agents.search.mcts import Mcts
from envgym.agents.search.planned import PlannedTrees
from envgym.agents.search.protocol import Selection, Strategy
from envgym.agents.search.random_expand import RandomExpand
from envgym.agents.search.surprisal_fork import SurprisalFork
from envgym.agents.search.turn_uncertainty import TurnUncertainty

__all__ = [
    "Beam",
    "BestOf",
    "Chain",
    "Mcts",
    "PlannedTrees",
    "RandomExpand",
    "RolloutContext",
    "Selection",
    "Strategy",
    "SurprisalFork",
    "TurnUncertainty",
]
