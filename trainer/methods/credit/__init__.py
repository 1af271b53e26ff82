"""Credit: a group of trees to advantages. Computed on nodes, spread to tokens in one module (`batch.spread`).

Statistics count episodes, never rows, and only those whose reward is valid.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.methods.credit.deep_search import DeepSearch
from envgym.trainer.methods.credit.dr_grpo import DrGrpo
from envgym.trainer.methods.credit.gae_bilevel import GaeBilevel
from envgym.trainer.methods.credit.gae_token import GaeToken
from envgym.trainer.methods.credit.gae_turn import GaeTurn
from envgym.trainer.methods.credit.gigpo import Gigpo
from envgym.trainer.methods.credit.grpo import Grpo
from envgym.trainer.methods.credit.min_form import MinForm
from envgym.trainer.methods.credit.mt_grpo import MtGrpo
from envgym.trainer.methods.credit.opo import Opo
from envgym.trainer.methods.credit.rloo import Rloo
from envgym.trainer.methods.credit.scrl import Scrl
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.spo import Spo
from envgym.trainer.methods.credit.tree_grpo import TreeGrpo
from envgym.trainer.methods.credit.tree_po import TreePo
from envgym.trainer.methods.credit.tree_rl import TreeRl
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.protocols import Credit, CriticCredit

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
