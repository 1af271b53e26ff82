"""`turn_uncertainty`: branch at the turns that the policy was least sure of. Source: 2601.04767 (AT2PO).

Each of L rounds takes N times the place with the highest u - penalty b: u is the mean surprisal of the tokens that were
sampled there (-log pi, over all turns played from the place), b how many branches it was given beyond the first turn
played there, those of this round included. Leaves of a tree: 1 + N L.

Branching that depends on what was sampled makes leaf averages biased; `docs/search.md` says by how much it matters.
"""

from statistics import fmean
from typing import ClassVar

from pydantic import Field

from envgym.agents.search.branches import Branch, Place
from envgym.agents.search.expanding import Expanding
from envgym.agents.search.growth import Growth
from envgym.agents.search.surprisal_fork import surprisals, turns_of


class TurnUncertainty(Expanding):
    """Continue from the `nodes` least sure turns, `rounds` times; a place that was branched before counts less."""

    name: ClassVar[str] = "turn_uncertainty"
    penalty: float = Field(default=0.1, ge=0)
    """What each branch of a place takes off its score, nats a token."""

    def decide(self, growth: Growth, count: int, number: int) -> list[Branch]:
        """Begin one branch at the best place, `count` times over."""
        unsure = uncertainties(growth)

        def score(place: Place) -> float:
            return unsure.get(place, 0.0) - self.penalty * (growth.num_branches(place) - 1)

        places = growth.places()
        return [growth.branch(max(places, key=score)) for _ in range(count)]


def uncertainties(growth: Growth) -> dict[Place, float]:
    """Return the mean surprisal of what was sampled at each place, nats a token."""
    sampled: dict[Place, list[float]] = {}
    for place, played, _ in turns_of(growth):
        sampled.setdefault(place, []).extend(surprisals(played.generation))
    return {place: fmean(found) for place, found in sampled.items() if found}
