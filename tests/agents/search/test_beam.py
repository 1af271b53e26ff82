"""Beam search: what is sampled, kept and told at every turn, and that there is always an answer."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym import Action, Ending, Reply, Role
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest
from envgym.agents.search import Beam
from envgym.agents.search.beam import NOT_AMONG_THE_BEST, REPEATS
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.scorers import SearchObservation
from envgym.config.plugins import Choice
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.errors import SettingsError
from tests.agents.search.growing import Babbler, answer, ended
from tests.agents.search.test_mcts import CLIMBER, Ladder, Short
from tests.support.parrots import char_agent, said

VALUE = Choice(name=CLIMBER)
LETTERS = "abcdefghijklmnopqrst"


def speaks(request: GenerateRequest) -> tuple[int, ...]:
    return said(LETTERS[request.seed % 20])


def value_of(tree: Tree, node: int) -> float:
    """Return the value that the beam gave a node; one that repeats an earlier one has none."""
    stats = tree.nodes[node].stats
    return -1.0 if stats is None or stats.pruned == REPEATS else stats.value


def pruned(tree: Tree) -> Counter[str]:
    return Counter(node.stats.pruned for node in tree.nodes if node.stats is not None and node.stats.pruned is not None)


def count_b(episode: Trajectory) -> int:
    actions = [turn.outcome.action.message.content for turn in episode.turns if turn.outcome is not None]
    return sum(action.startswith("b") for action in actions)


@pytest.mark.parametrize("keep", [1, 2, 3, 6])
def test_every_turn_samples_the_width_and_the_first_episode_is_whole(keep: int) -> None:
    policy = ScriptedPolicy(speaks)
    tree = answer(Beam(width=6, keep=keep, value=VALUE), policy, make_env=Ladder, agent=char_agent())
    assert len(policy.requests) == 3 * 6 + 2  # three turns, and the two that the first episode has left
    assert len(trajectories(tree)) == 1
    assert tree_from_json(tree_to_json(tree)) == tree


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_beam_of_one_goes_on_from_the_best_of_its_turn_alone(seed: int) -> None:
    policy = ScriptedPolicy(lambda request: said("abcde"[request.seed % 5]))
    tree = answer(Beam(width=4, keep=1, value=VALUE), policy, make_env=Ladder, agent=char_agent(), seed=seed)
    prompt = policy.requests[0].token_ids
    contexts = Counter(request.token_ids for request in policy.requests)
    ranked = sorted((one for one, count in contexts.items() if count >= 4), key=len)  # the first episode is asked alone
    assert [len(context) for context in ranked] == sorted({len(context) for context in contexts})
    for turn, context in enumerate(ranked):
        values = [value_of(tree, node) for node in range(len(tree.nodes)) if len(tree.path(node)) - 1 == turn]
        assert context.count(ord("b")) - prompt.count(ord("b")) == pytest.approx(3 * max(0.0, *values))
    (episode,) = trajectories(tree)
    assert count_b(episode) == max(count_b(Trajectory(tree=tree, leaf=leaf)) for leaf in ended(tree))


def test_equal_continuations_are_one_and_the_others_are_told_why_they_went() -> None:
    policy = ScriptedPolicy(lambda request: said("b"))
    tree = answer(Beam(width=5, keep=2, value=VALUE), policy, make_env=Ladder, agent=char_agent())
    assert len(policy.requests) == 3 * 5 + 2
    assert pruned(tree)[REPEATS] >= 2 * 4  # of the turns before the last; ended ones repeat to the end
    assert NOT_AMONG_THE_BEST not in pruned(tree)
    tree = answer(Beam(width=8, keep=1, value=VALUE), ScriptedPolicy(speaks), make_env=Ladder, agent=char_agent())
    assert pruned(tree)[NOT_AMONG_THE_BEST] > 0


def test_ended_episodes_keep_their_places() -> None:
    """Once `keep` episodes have ended with the highest values, the beam is over."""

    def ends(request: GenerateRequest) -> tuple[int, ...]:
        return said("c")

    policy = ScriptedPolicy(ends)
    tree = answer(Beam(width=4, keep=1, value=VALUE), policy, make_env=Short, agent=char_agent())
    assert len(policy.requests) == 4
    assert len(trajectories(tree)) == 1


@settings(max_examples=15)
@given(tokens=st.integers(12, 80), seed=st.integers(0, 99))
def test_there_is_an_answer_within_the_budget(tokens: int, seed: int) -> None:
    budget = SearchBudget(tokens_generated=tokens)
    tree = answer(Beam(width=4, beams=None, value=VALUE, budget=budget), Babbler("abc"), make_env=Ladder, seed=seed)
    assert len(trajectories(tree)) == 1
    assert tree.nodes[0].stats is not None
    assert tree.nodes[0].stats.spent.tokens_generated < tokens + 12  # less than one turn more


@pytest.mark.parametrize("tokens", [6, 7, 8, 20])
def test_budget_of_one_episode_is_spent_on_a_whole_one(tokens: int) -> None:
    strategy = Beam(width=4, value=VALUE, budget=SearchBudget(tokens_generated=tokens))
    tree = answer(strategy, ScriptedPolicy(speaks), make_env=Ladder, agent=char_agent())
    (episode,) = trajectories(tree)  # of three turns of two tokens, after which Ladder cuts it
    assert episode.ending is Ending.TRUNCATED_TURNS


def test_failed_first_episode_leaves_its_state_in_the_beam() -> None:
    policy = Babbler("b", end=1 - 1e-9, fails_at=1)  # in the second turn of the first episode
    tree = answer(Beam(width=1 + 1, keep=1, value=VALUE), policy, make_env=Ladder)
    (episode,) = trajectories(tree)
    assert episode.ending is Ending.TRUNCATED_TURNS
    endings = Counter(node.ending for node in tree.nodes if node.ending is not None)
    assert sum(count for ending, count in endings.items() if ending.is_error) == 1


def test_one_ends_and_the_others_go_on() -> None:
    """An ended episode keeps its place: a continuation and a state fewer from then on."""
    lines = iter(["z", "b", "a", "c", "d", *["a"] * 100])
    policy = ScriptedPolicy(lambda request: said(next(lines)))
    tree = answer(Beam(width=5, keep=2, value=Choice(name=f"{__name__}:ZIsBest")), policy, make_env=Short3)
    contexts = Counter(request.token_ids for request in policy.requests)
    assert sorted(contexts.values()) == [4, 4, 5]  # z ends in the first turn; then 4 from the one state beside it
    (episode,) = trajectories(tree)
    assert episode.ending is Ending.TERMINATED


class Short3(Ladder):
    def respond(self, action: Action) -> Reply:
        return Reply(observation="?", terminated=action.content == "z")


class ZIsBest:
    async def __call__(self, seen: Sequence[SearchObservation]) -> list[float]:
        said = [
            "".join(message.content for message in item.messages if message.role is Role.ASSISTANT) for item in seen
        ]
        return [2.0 * text.startswith("z") + text.startswith("b") for text in said]


def test_beams_repeat_until_the_budget_is_spent() -> None:
    once, twice, often = ScriptedPolicy(speaks), ScriptedPolicy(speaks), ScriptedPolicy(speaks)
    answer(Beam(width=4, value=VALUE), once, make_env=Ladder, agent=char_agent())
    answer(Beam(width=4, beams=2, value=VALUE), twice, make_env=Ladder, agent=char_agent())
    budget = SearchBudget(tokens_generated=200)
    answer(Beam(width=4, beams=None, value=VALUE, budget=budget), often, make_env=Ladder, agent=char_agent())
    assert (len(once.requests), len(twice.requests)) == (3 * 4 + 2, 2 * 3 * 4 + 2)
    assert len(often.requests) == 100  # two tokens each: a letter and the end of the turn


@pytest.mark.parametrize("pace", [1, 2])
def test_timing_does_not_matter(pace: int) -> None:
    trees = [
        answer(Beam(width=6, keep=3, beams=2, value=VALUE), Babbler("abc", pace=shuffled), make_env=Ladder)
        for shuffled in (0, pace)
    ]
    assert trees[0] == trees[1]


@pytest.mark.parametrize(
    "strategy, words",
    [
        (Beam(), "beam must have a value, got none"),
        (Beam(value=VALUE, width=4, keep=5), "keep must be at most width=4, got 5"),
        (Beam(value=VALUE, beams=None), "beams=None must be used with a budget, got none"),
    ],
)
def test_unusable_settings_are_refused(strategy: Beam, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        strategy.check(Ladder(), char_agent().settings, group_size=None)


def test_training_groups_are_refused() -> None:
    with pytest.raises(SettingsError, match="beam must choose an answer, got a group of episodes to train on"):
        Beam(value=VALUE).check(Ladder(), char_agent().settings, group_size=4)
