"""Which of several episodes is chosen: by public signs, by its ending, by its score."""

import asyncio
import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean

import pytest

from envgym import Ending, Scored, Split, Task
from envgym.agents.loop.path import PathNode
from envgym.agents.loop.state import begin
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import BestOf, RolloutContext
from envgym.agents.search.branches import Branch, SearchState, TurnRecord
from envgym.agents.search.scorers import SearchObservation, choose_answer
from envgym.config.plugins import Choice
from envgym.core.trajectory import trajectories
from envgym.core.tree import Edge, Tree
from envgym.envs.puzzles._grids import MOVES
from envgym.envs.puzzles.sokoban import Sokoban
from envgym.seeds import generator
from tests.support.parrots import char_agent, said

NUM_ROOMS, NUM_EPISODES = 60, 8


def moves_at_random(request: GenerateRequest) -> tuple[int, ...]:
    return said(" ".join(generator(request.seed).choice(MOVES, size=4)))


def make_env() -> Sokoban:
    return Sokoban(boxes=1, size=6, max_turns=10)  # 40 of the 60 moves


@cache
def room(number: int) -> Task:
    return make_env().tasks.task(Split.TEST, number)


def answer(strategy: BestOf, number: int) -> Tree:
    job = EpisodeJob(make_env=make_env, task=room(number), seed=number, tree_id="t", env_id="puzzles/sokoban-v0")
    context = RolloutContext(
        agent=char_agent(),
        policy=ScriptedPolicy(moves_at_random),
        sampling=Sampling(),
        slots=asyncio.Semaphore(NUM_EPISODES),
        clock=lambda: 0.0,
    )
    return asyncio.run(strategy.answer(job, context))


def success_of_chosen_and_of_all(strategy: BestOf, num_rooms: int = NUM_ROOMS) -> tuple[list[float], list[float]]:
    """Return, room by room, whether the chosen episode succeeded, and the share of all 8 that did."""
    trees = [answer(strategy, number) for number in range(num_rooms)]
    rewards = [episode.reward for tree in trees for episode in trajectories(tree)]
    chosen = [reward.value for reward in rewards if isinstance(reward, Scored)]
    endings = [[node.ending for node in tree.nodes if node.ending is not None] for tree in trees]
    assert {len(room) for room in endings} == {NUM_EPISODES}
    assert len(chosen) == num_rooms
    return chosen, [fmean(ending is Ending.TERMINATED for ending in room) for room in endings]


@pytest.mark.parametrize("select", ["majority", "likelihood"])
def test_public_selection_is_worth_one_episode(select: str) -> None:
    chosen, every = success_of_chosen_and_of_all(BestOf(n=NUM_EPISODES, select=Choice(name=select)))
    gains = [one - mean for one, mean in zip(chosen, every, strict=True)]
    noise = 2.6 * math.sqrt(sum(mean * (1 - mean) for mean in every)) / NUM_ROOMS  # of a choice that knows nothing
    assert abs(fmean(gains)) < noise, (fmean(chosen), fmean(every))


def test_selection_by_ending_or_reward_finds_every_solved_room() -> None:
    by_ending = BestOf(n=NUM_EPISODES, select=Choice(name="majority"), prefer_terminated=True)
    for strategy in (by_ending, BestOf(n=NUM_EPISODES, select=Choice(name="reward"))):
        chosen, every = success_of_chosen_and_of_all(strategy, num_rooms=20)
        assert chosen == [float(mean > 0) for mean in every]
        assert fmean(chosen) > 2 * fmean(every)


class LaterIsBetter:
    """Scores an episode by its place among those that it is given."""

    is_oracle = False

    async def score(self, observations: Sequence[SearchObservation]) -> list[float]:
        return [float(place) for place in range(len(observations))]


def ended(number: int, ending: Ending | None) -> Branch:
    """Return a branch of one turn that ended so."""
    agent = begin(char_agent(), sampling=Sampling(), seed=number)
    request = GenerateRequest(token_ids=(), sampling=agent.episode.sampling, seed=number)
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
def test_its_ending_comes_before_its_score(endings: list[Ending | None], prefer_terminated: bool, chosen: int) -> None:
    branches = [ended(number, ending) for number, ending in enumerate(endings)]
    answer = asyncio.run(choose_answer(branches, LaterIsBetter(), prefer_terminated=prefer_terminated))
    assert answer.number == chosen
