"""ReST-MCTS*: search, a scorer of quality values, and a policy that imitates what was solved."""

from pathlib import Path
from typing import Any

from pydantic import Field

from envgym.settings import Settings
from envgym.trainer.methods.self_training.base import Sections


class RestMctsRounds(Settings):
    """ReST-MCTS*: the policy imitates solved episodes of a tree search that the scorer leads. Source: 2406.03816.

    The search of the first round has no scorer: it backs up the rewards of whole episodes. Deviations: a round's policy
    goes on from the one before, as does its scorer from that policy (the paper's from the scorer before); all solved
    episodes of the search are imitated, without a threshold on the scorer's value of them.
    """

    search: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the search `mcts`."""
    sft: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the imitation, as `sft`."""

    def scorer_sections(self, previous: Path | None) -> Sections:
        """Search, led by the scorer of the round before, and learn the tree's quality values."""
        value = {} if previous is None else {"value": {"name": "critic", "run": str(previous)}}
        return {"credit": {"name": "rest_mcts"}, "search": {"name": "mcts", **value, **self.search}}

    def policy_sections(self, scorer: Path) -> Sections:
        """Imitate the solved episodes."""
        sft = {"source": {"name": "recorded", "directory": str(scorer)}, **self.sft}
        return {"sft": sft, "run": {"steps": 0}}
