"""Whole episodes of one task, and which of them is the answer."""

import math
from collections.abc import Callable, Sequence

import pytest

from envgym import Action, Ending, ForkCapability, Invalid, Reply, Role, Scored
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation
from envgym.agents.search import BestOf
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.engine import OUT_OF_BUDGET
from envgym.agents.search.scorers import SearchObservation
from envgym.config.plugins import Choice
from envgym.core.trajectory import Group, Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.errors import PolicyFailure, SettingsError, UnknownName
from tests.agents.search.growing import Babbler, answer, ended, episodes, grow
from tests.support.generations import generated
from tests.support.parrots import Parrot, char_agent, said


class Quiz(Parrot):
    """One turn; the answer `42` is right. Its episodes repeat, but it cannot be forked."""

    fork_capability = ForkCapability.NONE

    def respond(self, action: Action) -> Reply:
        is_right = "42" in action.content
        return Reply(observation="right" if is_right else "wrong", reward=float(is_right), terminated=True)


class Shortest:
    """Values the shorter conversation; sees no verdict."""

    async def __call__(self, seen: Sequence[SearchObservation]) -> list[float]:
        assert all(item.is_over and item.messages[-1].role is Role.ASSISTANT for item in seen)
        return [-len(item.messages[-1].content) for item in seen]


SHORTEST = Choice(name=f"{__name__}:Shortest")


def one_after_another(*words: str) -> Callable[[GenerateRequest], Sequence[int]]:
    left = iter(words)
    return lambda request: said(next(left))


def chosen(*words: str, **fields: object) -> Trajectory:
    strategy = BestOf.model_validate({"n": len(words), **fields})
    tree = answer(strategy, ScriptedPolicy(one_after_another(*words)), make_env=Quiz, agent=char_agent())
    (episode,) = trajectories(tree)
    assert len(ended(tree)) == len(words)
    return episode


def words_of(episode: Trajectory) -> str:
    outcome = episode.turns[-1].outcome
    assert outcome is not None
    return outcome.action.content


def test_majority_is_that_of_the_answers_not_of_the_words() -> None:
    # Answers: 7, 42, 42, 8. Two of the four say 42 in different words.
    episode = chosen("7", r"It is \boxed{42}.", "I think: <answer> 42 </answer>", "8")
    assert words_of(episode) == r"It is \boxed{42}."
    assert episode.reward == Scored(value=1.0)


def test_first_of_equals_is_chosen() -> None:
    assert words_of(chosen("b", "a", "a", "b")) == "b"


def test_reward_chooses_only_where_it_is_called_an_oracle() -> None:
    assert BestOf(select=Choice(name="reward")).selection.is_oracle
    assert not any(BestOf(select=Choice(name=name)).selection.is_oracle for name in ("majority", "likelihood"))
    assert not BestOf(select=Choice(name="value"), value=SHORTEST).selection.is_oracle
    assert words_of(chosen("7", "7", "42", select=Choice(name="reward"))) == "42"
    assert words_of(chosen("7", "7", "42", select=Choice(name="majority"))) == "7"


def test_hook_sees_the_conversation_without_the_verdict() -> None:
    assert words_of(chosen("long words", "7", "middle", select=Choice(name="value"), value=SHORTEST)) == "7"


def test_likelihood_is_the_mean_log_prob_of_what_was_sampled() -> None:
    tree = answer(BestOf(n=6, select=Choice(name="likelihood")), Babbler(), make_env=lambda: Parrot(max_turns=2))
    kept = [leaf for leaf in ended(tree) if leaf in tree.leaves]
    means = {}
    for leaf in ended(tree):
        row = Trajectory(tree=tree, leaf=leaf).rows[0]
        logprobs = [value for value, trains in zip(row.behavior_logprobs, row.loss_mask, strict=True) if trains]
        means[leaf] = math.fsum(logprobs) / len(logprobs)
    assert kept == [max(means, key=lambda leaf: means[leaf])]


def test_others_are_kept_in_the_tree_with_the_reason() -> None:
    tree = chosen("7", "42", "42").tree
    stats = [tree.nodes[leaf].stats for leaf in ended(tree)]
    assert [item.pruned for item in stats if item is not None] == [
        "not chosen by majority",
        None,
        "not chosen by majority",
    ]


def test_episode_that_broke_is_the_answer_only_where_all_did() -> None:
    def breaks(request: GenerateRequest) -> Sequence[int] | Exception:
        return PolicyFailure("gone") if calls.pop() else said("7")

    calls = [False, True, True]
    tree = answer(BestOf(n=3), ScriptedPolicy(breaks), make_env=Quiz, agent=char_agent())
    assert [episode.ending for episode in trajectories(tree)] == [Ending.TERMINATED]
    calls = [True, True, True]
    tree = answer(BestOf(n=3), ScriptedPolicy(breaks), make_env=Quiz, agent=char_agent())
    assert [episode.ending for episode in trajectories(tree)] == [Ending.ERROR_POLICY]


@pytest.mark.parametrize("parallel", [1, 3, 8])
def test_episodes_are_sampled_until_the_budget_is_spent(parallel: int) -> None:
    tree = answer(BestOf(n=None, parallel=parallel, budget=SearchBudget(env_steps=21)), Babbler())
    assert tree.cost.env_steps == 21
    assert len(tree.leaves) == 1


def test_in_training_the_best_of_the_episodes_are_the_group() -> None:
    words = ("7", "42", "8", "42", "9", "42")
    policy = ScriptedPolicy(one_after_another(*words))
    strategy = BestOf(n=6, select=Choice(name="reward"))
    (tree,) = grow(strategy, policy, make_env=Quiz, agent=char_agent(), group_size=4).trees
    assert [episode.reward for episode in trajectories(tree)] == [Scored(value=value) for value in (0.0, 1.0, 1.0, 1.0)]
    assert len(episodes(grow(BestOf(n=2), group_size=5).trees)) == 5


def test_what_cannot_choose_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean majority"):
        BestOf(select=Choice(name="majorty")).check(Quiz(), char_agent().settings, group_size=None)
    with pytest.raises(SettingsError, match=r"answer_scorer\.name must name an importable class"):
        BestOf(select=Choice(name="no.such:thing")).check(Quiz(), char_agent().settings, group_size=None)
    with pytest.raises(SettingsError, match="select=value must be used with a value, got none"):
        BestOf(select=Choice(name="value")).check(Quiz(), char_agent().settings, group_size=None)
    with pytest.raises(SettingsError, match="n=None must be used with a budget"):
        BestOf(n=None).check(Quiz(), char_agent().settings, group_size=None)
    with pytest.raises(SettingsError, match="group must hold at least 2 episodes"):
        BestOf().check(Quiz(), char_agent().settings, group_size=1)


def test_nothing_said_gets_no_vote() -> None:
    def cut(request: GenerateRequest) -> Generation:
        return generated((65,), 0.0, reason=FinishReason.LENGTH, version=0)

    tree: Tree = answer(BestOf(n=2), ScriptedPolicy(cut), make_env=Quiz, agent=char_agent())
    assert [episode.ending for episode in trajectories(tree)] == [Ending.TRUNCATED_TOKENS]


def test_budget_of_few_episodes_is_not_spread_over_many() -> None:
    # An episode of four turns costs 4 steps; 10 hold two of them and half of a third, where 8 side by side end none.
    tree = answer(BestOf(n=None, parallel=8, budget=SearchBudget(env_steps=10)), Babbler(end=1 - 1e-9))
    endings = [tree.nodes[leaf].ending for leaf in ended(tree)]
    assert endings == [Ending.TRUNCATED_TURNS, Ending.TRUNCATED_TURNS, Ending.TRUNCATED_BUDGET]


def test_episode_that_the_budget_cut_is_an_invalid_one_of_its_group() -> None:
    # An episode of four turns costs 4 steps and earns 4 x 0.25; 6 steps hold one and two turns of another.
    strategy = BestOf(n=None, budget=SearchBudget(env_steps=6))
    group = Group(key="g", trees=grow(strategy, Babbler(end=1 - 1e-9), group_size=2).trees)
    assert [episode.reward for episode in group.trajectories] == [
        Scored(value=1.0),
        Invalid(cause=Ending.ERROR_ABORTED, reason=OUT_OF_BUDGET),
    ]
    assert [episode.ending for episode in group.valid] == [Ending.TRUNCATED_TURNS]


def test_best_of_a_group_takes_no_failed_episode_before_a_valid_one() -> None:
    policy = ScriptedPolicy([PolicyFailure("gone"), said("7"), said("7"), said("42")])
    (tree,) = grow(BestOf(n=4), policy, make_env=Quiz, agent=char_agent(), group_size=3).trees
    assert [episode.ending for episode in trajectories(tree)] == [Ending.TERMINATED] * 3
