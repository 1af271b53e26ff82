"""ReST-MCTS*: search, a scorer of quality values, and a policy that imitates what was solved."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.self_training.base import Sections


class RestMctsRounds(Settings):
    """ReST-MCTS*: the policy imitates solved episodes of a tree search that the scorer leads. Source: 2406.03816.

    A round's policy goes on from the one before, its scorer from the scorer before. Solved episodes of the search are
    imitated where the scorer's value of them is at least `min_value`, with 0.2 as in the authors' code. Deviation: the
    search of the first round has no scorer, and backs up the rewards of whole episodes, where the paper's first scorer
    learns from solutions with false steps that another model wrote; the first round's scorer begins as the policy.
    """

    continues_scorer: ClassVar[bool] = True
    """A round's scorer goes on from the scorer before."""
    search: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the search `mcts`."""
    min_value: float = 0.2
    """Least value, by the round's scorer, of the solved episodes that are imitated."""
    sft: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the imitation, as `sft`."""

    def scorer_sections(self, previous: Path | None) -> Sections:
        """Search, led by the scorer of the round before, and learn the tree's quality values."""
        value = {} if previous is None else {"value": {"name": "critic", "run": str(previous)}}
        return {"credit": {"name": "rest_mcts"}, "search": {"name": "mcts", **value, **self.search}}

    def policy_sections(self, scorer: Path) -> Sections:
        """Imitate the solved episodes that the scorer thinks well of."""
        source = {"name": "recorded", "directory": str(scorer), "min_value": self.min_value}
        sft = {"source": source, **self.sft}
        return {"sft": sft, "run": {"steps": 0}}
