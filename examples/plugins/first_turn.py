"""Token weights: advantages of the first turn alone are kept.

    envgym train run.yaml --set 'weights=[examples/plugins/first_turn.py:first_turn]'

Token weights are a function of a batch of all rows of a step that returns the new advantages [N, T]; `batch.ids` says
which turn, segment and group each token is of. A class with settings may ask for entropies or another model's log-probs
in an attribute `scores`, and read them with `batch.score(name)`.
"""

import torch
from torch import Tensor

from envgym.trainer.methods.losses.base import LossBatch


def first_turn(batch: LossBatch) -> Tensor:
    """Keep the advantages of the tokens of each episode's first turn."""
    return torch.where(batch.ids.turns_BT == 0, batch.advantages_BT, 0.0)
