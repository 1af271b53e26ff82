"""Which finished episode is the answer: first how it ended, then its score, then its number."""

import asyncio
from collections.abc import Sequence

import pytest

from envgym.agents.loop.path import PathNode
from envgym.agents.loop.state import begin
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.search.branches import Branch, SearchState, TurnRecord
from envgym.agents.search.scorers import SearchObservation, choose_answer
from envgym.core.tree import Edge
from envgym.core.turns import Ending
from tests.support.parrots import char_agent


class LaterIsBetter:
    """Scores an episode by its place among those that it is given."""

    is_oracle = False

    async def score(self, observations: Sequence[SearchObservation]) -> list[float]:
        return [float(place) for place in range(len(observations))]


def ended(number: int, ending: Ending | None) -> Branch:
    """Return a branch of one turn that ended so."""
    agent = begin(char_agent(), sampling=Sampling(), seed=number)
    request = GenerateRequest(token_ids=(), sampling=agent.sampling, seed=number)
    start = SearchState(agent, request, snapshot=None)
    error = "it fell" if ending is not None and ending.is_error else None
    node = PathNode(parent=None, edge=Edge(segments=(), ends_turn=False), ending=ending, error=error)
    return Branch(number, start, seed=number, turns=[TurnRecord(start, None, node, None)])


@pytest.mark.parametrize(
    "endings, prefer_terminated, chosen",
    [
        ([Ending.TERMINATED, Ending.TERMINATED], False, 1),
        ([Ending.TERMINATED, Ending.TRUNCATED_TURNS], False, 1),
        ([Ending.TERMINATED, Ending.TRUNCATED_TURNS], True, 0),
        ([Ending.TRUNCATED_TOKENS, Ending.TRUNCATED_TURNS], True, 1),
        ([Ending.TERMINATED, Ending.TRUNCATED_BUDGET], False, 0),
        ([Ending.TRUNCATED_TURNS, Ending.TRUNCATED_BUDGET], False, 0),
        ([Ending.TRUNCATED_TURNS, Ending.TRUNCATED_BUDGET], True, 0),
        ([Ending.TRUNCATED_BUDGET, Ending.ERROR_POLICY], False, 0),
        ([Ending.TRUNCATED_BUDGET, Ending.ERROR_ENV], True, 0),
        ([Ending.TRUNCATED_BUDGET, Ending.TRUNCATED_BUDGET], True, 1),
        ([Ending.ERROR_ENV, Ending.TRUNCATED_BUDGET, None], False, 1),
        # Nothing that failed has an answer: the first of equals.
        ([Ending.ERROR_ENV, Ending.ERROR_POLICY], False, 0),
    ],
)
def test_how_it_ended_comes_before_its_score(
    endings: list[Ending | None], prefer_terminated: bool, chosen: int
) -> None:
    branches = [ended(number, ending) for number, ending in enumerate(endings)]
    answer = asyncio.run(choose_answer(branches, LaterIsBetter(), prefer_terminated=prefer_terminated))
    assert answer.number == chosen
