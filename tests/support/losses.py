"""Losses on batches made by hand."""

from envgym.trainer.methods.losses import LossStats, TokenLoss


def stats_of(result: TokenLoss) -> LossStats:
    """Return what a loss that clips has counted."""
    assert result.stats is not None
    return result.stats
