"""What is settled before a search begins, what a choice is called, and what of a policy's numbers is read."""

from typing import Any

import pytest

from envgym import ForkCapability, Message, Role, ToolCall
from envgym.agents.protocols import Generation
from envgym.agents.search import BestOf, Mcts, RandomExpand, Selection, SurprisalFork, TurnUncertainty
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.scorers import SearchObservation, answer_of
from envgym.agents.search.snapshots import Branching, resolve_branching
from envgym.agents.search.surprisal_fork import Where, surprisals
from envgym.config.plugins import Choice
from envgym.config.settings import Settings
from envgym.errors import SettingsError
from tests.support.generations import generated
from tests.support.parrots import Parrot, char_agent


class Replaying(Parrot):
    fork_capability = ForkCapability.REPLAY


class Sealed(Parrot):
    fork_capability = ForkCapability.NONE


@pytest.mark.parametrize(
    "kind, asked, found",
    [
        (Parrot, Branching.AUTO, Branching.FORK),
        (Parrot, Branching.FORK, Branching.FORK),
        (Parrot, Branching.REPLAY, Branching.REPLAY),
        (Replaying, Branching.AUTO, Branching.REPLAY),
        (Replaying, Branching.REPLAY, Branching.REPLAY),
        (Replaying, Branching.FORK, "branching=fork must be used with an env that copies its state"),
        (Sealed, Branching.AUTO, "env must declare fork capability state or replay"),
        (Sealed, Branching.REPLAY, "env must declare fork capability state or replay"),
    ],
)
def test_an_env_is_branched_as_it_declares(kind: type[Parrot], asked: Branching, found: Branching | str) -> None:
    if isinstance(found, Branching):
        assert resolve_branching(kind(), asked, where="here") is found
    else:
        with pytest.raises(SettingsError, match=found):
            resolve_branching(kind(), asked, where="here")


def test_a_budget_holds_a_chain_for_each_tree() -> None:
    def check(tokens: int, *, group_size: int | None) -> None:
        budget = SearchBudget(tokens_generated=tokens)
        RandomExpand(trees=2, budget=budget).check(
            Parrot(), char_agent(max_turn_tokens=10).settings, group_size=group_size
        )

    check(10, group_size=None)  # one tree answers
    check(20, group_size=6)  # two trees of three leaves
    with pytest.raises(SettingsError, match=r"got 9 generated tokens for 1 tree\b"):
        check(9, group_size=None)
    with pytest.raises(SettingsError, match="got 19 generated tokens for 2 trees"):
        check(19, group_size=6)


def test_a_choice_is_called_what_it_is() -> None:
    critic = Choice(name=f"{__name__}:Nothing")
    limited = SearchBudget(env_steps=5)
    assert BestOf().selection == Selection(by="majority", is_oracle=False, uses_ending=False)
    assert BestOf(budget=limited).selection.uses_ending
    assert BestOf(prefer_terminated=True).selection.uses_ending
    assert BestOf(select=Choice(name="reward")).selection == Selection(by="reward", is_oracle=True)
    assert BestOf(select=Choice(name="value"), value=critic).selection.by == critic.name
    assert BestOf(select=Choice(name="majority"), value=critic).selection.by == "majority"
    # A search led by rewards is an oracle's; without a value to choose by, it chooses by majority.
    assert Mcts().selection == Selection(by="majority", is_oracle=True)
    assert Mcts(value=critic).selection == Selection(by=critic.name, is_oracle=False, uses_ending=True)


class Nothing:
    async def __call__(self, observations: object) -> list[float]:
        return []


@pytest.mark.parametrize(
    "settings, defaults",
    [
        (BestOf(), {"n": 8, "parallel": 8}),
        (RandomExpand(), {"trees": None, "nodes": 2, "rounds": 1, "keep": None}),
        (TurnUncertainty(), {"penalty": 0.1}),
        (
            SurprisalFork(),
            {"where": Where.TOKEN, "branches": 2, "probability": 0.5, "weight": 0.2, "first_tokens": 20,
             "vocabulary": 32_000},
        ),
        (
            Mcts(),
            {"simulations": 16, "width": 8, "widening": 0.5, "rule": "puct", "c": 1.0, "frontier": False,
             "roll_forward": 0, "backup": "mean", "novelty": 0.0, "parallel": 4, "deterministic": True,
             "prefer_terminated": False},
        ),
    ],
)  # fmt: skip
def test_defaults(settings: Settings, defaults: dict[str, Any]) -> None:  # any field's value
    assert {name: getattr(settings, name) for name in defaults} == defaults


@pytest.mark.parametrize(
    "kind, wrong",
    [
        (BestOf, {"n": 0}), (BestOf, {"parallel": 0}),
        (RandomExpand, {"trees": 0}), (RandomExpand, {"nodes": 0}), (RandomExpand, {"rounds": 0}),
        (RandomExpand, {"keep": 0}), (TurnUncertainty, {"penalty": -0.1}),
        (SurprisalFork, {"branches": 0}), (SurprisalFork, {"probability": 1.1}), (SurprisalFork, {"probability": -0.1}),
        (SurprisalFork, {"first_tokens": 0}), (SurprisalFork, {"vocabulary": 1}),
        (Mcts, {"simulations": 0}), (Mcts, {"width": 0}), (Mcts, {"widening": 1.1}), (Mcts, {"widening": -0.1}),
        (Mcts, {"c": -0.1}), (Mcts, {"roll_forward": -1}), (Mcts, {"novelty": -0.1}), (Mcts, {"parallel": 0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_and_its_ends_are_not(kind: type[Settings], wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=name):
        kind.model_validate(wrong)
    end = value + 1 if isinstance(value, int) else round(value)
    assert getattr(kind.model_validate({name: end}), name) == end


def test_surprisal_is_at_temperature_1_where_the_engine_gives_it() -> None:
    def generation(raw: tuple[float, ...] | None) -> Generation:
        return generated((1, 2), (-0.5, -1.0), raw=raw)

    assert surprisals(generation((-2.0, -4.0))) == (2.0, 4.0)
    assert surprisals(generation(None)) == (0.5, 1.0)
    assert surprisals(None) == ()


@pytest.mark.parametrize(
    "messages, num_turns, answer",
    [
        ([Message(role=Role.USER, content="7?")], 0, None),
        ([Message(role=Role.USER, content="7?")], 1, None),
        ([Message(role=Role.ASSISTANT, content="7")], 0, None),  # an example in the prompt is no answer
        ([Message(role=Role.ASSISTANT, content=r"so \boxed{ Seven  Up }")], 1, "seven up"),
        ([Message(role=Role.ASSISTANT, content="6"), Message(role=Role.ASSISTANT, content="")], 2, None),
        (
            [Message(role=Role.ASSISTANT, content="", tool_calls=(ToolCall(name="f", arguments={"b": 1, "a": 2}),))],
            1,
            '[["f", {"a": 2, "b": 1}]]',
        ),
    ],
)
def test_answer_is_marked_said_or_called_last(messages: list[Message], num_turns: int, answer: str | None) -> None:
    observation = SearchObservation(
        messages=tuple(messages), token_ids=(), num_turns=num_turns, is_over=True, logprob=None
    )  # fmt: skip
    assert answer_of(observation) == answer
