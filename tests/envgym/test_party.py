"""Scripted parties depend on the seed and on the conversation, and on nothing else."""

import copy
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from envgym.core.messages import Message, Role
from envgym.errors import PartyFailure
from envgym.party import Party, ScriptedParty


def said(*texts: str) -> list[Message]:
    """A conversation that the other side opens."""
    roles = [Role.USER, Role.ASSISTANT]
    return [Message(role=roles[i % 2], content=text) for i, text in enumerate(texts)]


def echo(messages: Sequence[Message], generator: np.random.Generator) -> str:
    return f"{messages[-1].content} {generator.integers(10**9)}"


def test_a_list_answers_the_kth_turn_with_its_kth_reply() -> None:
    party: Party = ScriptedParty(["hello", "bye"])
    assert party.reply(said("hi")) == Message(role=Role.ASSISTANT, content="hello")
    assert party.reply(said("hi", "hello", "so?")).content == "bye"
    assert party.reply(said("hi")).content == "hello"  # asked again from an earlier point, as a fork does


def test_a_list_that_has_ended_is_a_failure_of_the_party() -> None:
    with pytest.raises(PartyFailure, match="script must hold more than 1 replies, got 1"):
        ScriptedParty(["hello"]).reply(said("hi", "hello", "so?"))


def test_equal_seeds_and_conversations_give_equal_replies() -> None:
    party = ScriptedParty(echo, seed=3)
    first = party.reply(said("a"))
    party.reply(said("b"))
    assert party.reply(said("a")) == first
    assert copy.deepcopy(party).reply(said("a")) == first
    assert pickle.loads(pickle.dumps(party)).reply(said("a")) == first
    assert ScriptedParty(echo, seed=4).reply(said("a")) != first
    assert party.reply(said("b", "x", "a")) != first


def test_a_script_that_raises_is_a_failure_of_the_party() -> None:
    def broken(messages: Sequence[Message], generator: np.random.Generator) -> str:
        return messages[99].content

    with pytest.raises(PartyFailure, match="the script of a party failed: IndexError"):
        ScriptedParty(broken).reply(said("a"))
