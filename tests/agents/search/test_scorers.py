"""What a scorer of finished episodes is given, and that no public one chooses by how they ended."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import pytest

from envgym import Action, Ending, Message, Reply, Role, Scored
from envgym.agents.evaluation.play import EvalPlan
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.search import BestOf, Mcts
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.protocol import TreeStrategy
from envgym.agents.search.scorers import ANSWER_SCORER, Likelihood, SearchObservation, answer_in
from envgym.agents.settings import EvaluationSettings
from envgym.config.plugins import Choice
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.errors import RunError
from envgym.seeds import derive_seed
from tests.agents.search.growing import answer
from tests.support.generations import generated
from tests.support.parrots import Parrot, char_agent, said

NUM_TASKS = 120
CHANCE = 1 - (1 - 1 / 20) ** 4
"""Success rate of random numbers: 18.5 %."""
NOISE = 2.6 * math.sqrt(CHANCE * (1 - CHANCE) / NUM_TASKS)
"""Half-width of a 99 % interval of a success rate: 9.2 points."""


class Safe(Parrot):
    """Opens at one in so many sequences of numbers: only success ends an episode before its turns are over."""

    def __init__(self, max_turns: int = 4, sequences: int = 20) -> None:
        super().__init__(max_turns=max_turns)
        self.sequences = sequences

    def respond(self, action: Action) -> Reply:
        self.state.heard = derive_seed(self.state.heard, action.content) % 10**6
        is_open = self.state.heard % self.sequences == 0
        return Reply(observation="?", reward=float(is_open), terminated=is_open)


class Noise:
    """Values that know nothing; whatever it was given is kept."""

    observations: ClassVar[list[SearchObservation]] = []

    async def __call__(self, observations: Sequence[SearchObservation]) -> list[float]:
        self.observations.extend(observations)
        return [derive_seed(*item.token_ids, item.num_turns) % 1000 / 1000 for item in observations]


VALUE = Choice(name=f"{__name__}:Noise")


def draws_numbers(request: GenerateRequest) -> tuple[int, ...]:
    return said(str(request.seed % 1000))


def answers_of(strategy: TreeStrategy, num_tasks: int = NUM_TASKS) -> list[Tree]:
    policy = ScriptedPolicy(draws_numbers)
    return [answer(strategy, policy, make_env=Safe, agent=char_agent(), seed=seed) for seed in range(num_tasks)]


def success_of(strategy: TreeStrategy) -> float:
    rewards = [episode.reward for tree in answers_of(strategy) for episode in trajectories(tree)]
    assert len(rewards) == NUM_TASKS
    return sum(reward == Scored(value=1.0) for reward in rewards) / NUM_TASKS


PUBLIC = [name for name in ANSWER_SCORER.table if not ANSWER_SCORER.build(Choice(name=name)).is_oracle]


@pytest.mark.parametrize("select", [*PUBLIC, "value"])
def test_public_scorer_selects_at_the_level_of_one_episode_where_the_ending_is_the_verdict(select: str) -> None:
    strategy = BestOf(n=8, select=Choice(name=select), value=VALUE if select == "value" else None)
    assert abs(success_of(strategy) - CHANCE) < NOISE
    assert not strategy.selection.uses_ending


class Short:
    """Prefers the fewest tokens, as the mean log-prob of an episode that was cut may."""

    async def __call__(self, observations: Sequence[SearchObservation]) -> list[float]:
        return [-float(len(item.token_ids)) for item in observations]


def test_episode_that_the_budget_cut_is_chosen_last_and_the_result_is_selected_by_ending() -> None:
    value = Choice(name=f"{__name__}:Short")
    budget = SearchBudget(tokens_generated=60)
    strategy = BestOf(n=8, select=Choice(name="value"), value=value, budget=budget)
    chosen_cut, all_cut = [], []
    for tree in answers_of(strategy):
        (episode,) = trajectories(tree)
        endings = {node.ending for node in tree.nodes if node.ending is not None}
        chosen_cut.append(episode.ending is Ending.TRUNCATED_BUDGET)
        all_cut.append(endings == {Ending.TRUNCATED_BUDGET})
    assert chosen_cut == all_cut
    assert 0 < sum(all_cut) < NUM_TASKS
    assert strategy.selection.uses_ending


@pytest.mark.parametrize("select", [*PUBLIC, "value"])
def test_search_by_a_value_selects_at_the_level_of_one_episode_where_the_ending_is_the_verdict(select: str) -> None:
    strategy = Mcts(simulations=16, select=Choice(name=select), value=VALUE)
    assert abs(success_of(strategy) - CHANCE) < NOISE
    assert not strategy.selection.is_oracle
    assert strategy.selection.uses_ending


def test_search_by_values_that_know_nothing_gains_by_endings_in_long_episodes_and_says_so() -> None:
    # Simulations of one turn end only by success, so most of the branches that can be chosen are successes.
    strategy, num_tasks, chance = Mcts(simulations=60, value=VALUE), 150, 1 - (1 - 1 / 50) ** 20
    policy = ScriptedPolicy(draws_numbers)
    long = partial(Safe, 20, 50)
    trees = [answer(strategy, policy, make_env=long, agent=char_agent(), seed=seed) for seed in range(num_tasks)]
    rewards = [episode.reward for tree in trees for episode in trajectories(tree)]
    success = sum(reward == Scored(value=1.0) for reward in rewards) / num_tasks
    assert success > chance + 1.6 * math.sqrt(chance * (1 - chance) / num_tasks), success
    assert strategy.selection.uses_ending


def test_episode_without_an_action_is_never_the_likeliest() -> None:
    empty = SearchObservation(messages=(), token_ids=(1,), num_turns=0, is_over=True, logprob=0.0)
    played = SearchObservation(messages=(), token_ids=(1, 2), num_turns=1, is_over=True, logprob=-3.0)
    assert asyncio.run(Likelihood().score([empty, played])) == [-math.inf, -3.0]


@pytest.mark.parametrize("select", PUBLIC)
def test_choice_by_ending_is_a_setting_of_its_own_and_named(select: str) -> None:
    # One of eight episodes succeeds with probability 1 - 0.95^32 = 0.81.
    strategy = BestOf(n=8, select=Choice(name=select), prefer_terminated=True)
    assert success_of(strategy) > 0.7
    assert strategy.selection.uses_ending
    plan = EvalPlan(
        env_id="safe", make_env=Safe, tasks=(), settings=EvaluationSettings(), seed=0, selection=strategy.selection
    )
    assert plan.title == "held-out selected by ending"


def test_oracle_by_ending_is_called_both() -> None:
    selection = Mcts(prefer_terminated=True).selection
    plan = EvalPlan(env_id="safe", make_env=Safe, tasks=(), settings=EvaluationSettings(), seed=0, selection=selection)
    assert plan.title == "held-out oracle-selected, selected by ending"


def test_public_scorer_is_not_given_the_reward_nor_the_last_reply_and_an_oracle_is_given_the_reward() -> None:
    Noise.observations.clear()
    answers_of(BestOf(n=4, select=Choice(name="value"), value=VALUE), num_tasks=4)
    assert len(Noise.observations) == 16
    assert {item.reward for item in Noise.observations} == {None}
    assert all(item.messages[-1].content.isdigit() for item in Noise.observations)
    oracle = ANSWER_SCORER.build(Choice(name="reward"))
    observation = SearchObservation(messages=(), token_ids=(), num_turns=1, is_over=True, logprob=0.0, reward=0.5)
    assert asyncio.run(oracle.score([observation])) == [0.5]
    (episode,) = trajectories(answers_of(BestOf(n=64, select=Choice(name="reward")), num_tasks=1)[0])
    assert episode.ending is Ending.TERMINATED


def samples_at(
    sampling: Sampling, *, raw_logprobs: tuple[float, ...] | None, behavior: tuple[float, ...]
) -> SearchObservation:
    generation = generated(said("a"), behavior, raw=raw_logprobs, version=0)
    Noise.observations.clear()
    strategy = BestOf(n=1, select=Choice(name="value"), value=VALUE)
    answer(
        strategy,
        ScriptedPolicy(lambda _: generation),
        make_env=lambda: Parrot(max_turns=1),
        agent=char_agent(),
        sampling=sampling,
    )
    return Noise.observations[0]


def test_likelihood_is_of_the_policy_at_temperature_1_whatever_it_was_sampled_at() -> None:
    likelihood = ANSWER_SCORER.build(Choice(name="likelihood"))
    greedy = samples_at(Sampling(temperature=0.0), raw_logprobs=(-1.0, -0.5), behavior=(0.0, 0.0))
    tempered = samples_at(Sampling(temperature=0.5), raw_logprobs=(-1.0, -0.7), behavior=(-0.4, -0.1))
    raw = samples_at(Sampling(), raw_logprobs=None, behavior=(-0.3, -0.1))
    assert asyncio.run(likelihood.score([greedy, tempered, raw])) == pytest.approx([-0.75, -0.85, -0.2])


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.5), Sampling(top_p=0.9), Sampling(top_k=3)])
def test_likelihood_without_the_log_probs_of_temperature_1_is_refused(sampling: Sampling) -> None:
    observation = samples_at(sampling, raw_logprobs=None, behavior=(-0.3, -0.1))
    assert observation.logprob is None
    with pytest.raises(RunError, match="likelihood must be used with log-probs at temperature 1"):
        asyncio.run(ANSWER_SCORER.build(Choice(name="likelihood")).score([observation]))


@pytest.mark.parametrize(
    "texts, answer",
    [
        (
            (
                r"so \boxed{Up}",
                "<think>down?</think><answer>up</answer>",
                r"<answer>\boxed{\text{UP}}</answer>",
                "**up**",
            ),
            "up",
        ),
        ((r"\boxed{1,200}", r"\boxed{1,200} <answer>1200</answer>"), "1,200"),
        ((r"\boxed{up} \boxed{down}", r"\boxed{up} or \boxed{", "<think>up", ""), None),
    ],
)
def test_votes_are_for_the_one_answer_that_an_action_marks(texts: Sequence[str], answer: str | None) -> None:
    assert {answer_in(Message(role=Role.ASSISTANT, content=text)) for text in texts} == {answer}
