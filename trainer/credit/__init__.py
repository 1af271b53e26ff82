"""Credit: a group of trees to advantages. Computed on nodes, spread to tokens in one place (`spread`).

Statistics count episodes, never rows, and only those whose reward is valid.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.credit.deep_search import DeepSearch
from envgym.trainer.credit.dr_grpo import DrGrpo
from envgym.trainer.credit.gae_bilevel import GaeBilevel
from envgym.trainer.credit.gae_token import GaeToken
from envgym.trainer.credit.gae_turn import GaeTurn
from envgym.trainer.credit.gigpo import Gigpo
from envgym.trainer.credit.grpo import Grpo
from envgym.trainer.credit.min_form import MinForm
from envgym.trainer.credit.mt_grpo import MtGrpo
from envgym.trainer.credit.opo import Opo
from envgym.trainer.credit.rloo import Rloo
from envgym.trainer.credit.scrl import Scrl
from envgym.trainer.credit.sibling import Sibling
from envgym.trainer.credit.spo import Spo
from envgym.trainer.credit.tree_grpo import TreeGrpo
from envgym.trainer.credit.tree_po import TreePo
from envgym.trainer.credit.tree_rl import TreeRl
from envgym.trainer.credit.turn_grpo import TurnGrpo
from envgym.trainer.points import Credit, CriticCredit

CREDITS: Final[Mapping[str, Callable[..., Credit]]] = MappingProxyType(
    {
        "grpo": Grpo,
        "dr_grpo": DrGrpo,
        "rloo": Rloo,
        "opo": Opo,
        "turn_grpo": TurnGrpo,
        "mt_grpo": MtGrpo,
        "scrl": Scrl,
        "min_form": MinForm,
        "sibling": Sibling,
        "gigpo": Gigpo,
        "tree_grpo": TreeGrpo,
        "tree_po": TreePo,
        "tree_rl": TreeRl,
        "spo": Spo,
        "deep_search": DeepSearch,
    }
)
"""Name -> class; keyword arguments are the method's settings."""

CRITIC_CREDITS: Final[Mapping[str, Callable[..., CriticCredit]]] = MappingProxyType(
    {"gae_turn": GaeTurn, "gae_token": GaeToken, "gae_bilevel": GaeBilevel}
)
"""Name -> class, of the methods that a critic's values go into."""
