"""The contract of token weights, and the numbers of sampled tokens that several of them read."""

from typing import Final, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from envgym.config.plugins import PluginKind
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.tables import KINDS


@runtime_checkable
class TokenWeights(Protocol):
    """Gives the tokens of all rows of a step other advantages; asks for scores in an attribute `scores`."""

    def __call__(self, batch: LossBatch) -> Float[Tensor, "N T"]:
        """Return the new advantages.

        Args:
            batch: all rows of the step, without gradient. Its log-probs, the old ones too, are those that the sampler
                stated; entropies and other models' log-probs are scores. What the loss mask leaves out is not read.
        """
        ...


WEIGHTS: Final[PluginKind[TokenWeights]] = KINDS["weights"]
