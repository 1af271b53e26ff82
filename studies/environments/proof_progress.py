"""How far a proof of `math/proofs-v0` is, by what Coq has shown: a value for searches."""

import re
from collections.abc import Sequence

from envgym.agents.search.scorers import SearchObservation
from envgym.core.messages import Role

GOALS = re.compile(r"(\d+) goals?$", re.MULTILINE)


class ProofProgress:
    """n / (n + g) after n different states of the proof with g open goals; 0 after a tactic that changed nothing."""

    async def __call__(self, observations: Sequence[SearchObservation]) -> Sequence[float]:
        """Return the progress of proofs under way; that of an episode which has ended is 0, as it goes nowhere."""
        return [
            0.0 if item.is_over else _progress([m.content for m in item.messages if m.role is not Role.ASSISTANT])
            for item in observations
        ]


def _progress(shown: Sequence[str]) -> float:
    seen: set[str] = set()
    num_goals, is_new = 1, True
    for text in shown:
        found = GOALS.search(text)
        state = text[found.start() :] if found else ""
        is_new = found is not None and state not in seen
        if found is not None:
            seen.add(state)
            num_goals = int(found[1])
    return len(seen) / (len(seen) + num_goals) if is_new else 0.0
