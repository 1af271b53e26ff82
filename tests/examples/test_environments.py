"""What the study of environments adds: a value of unfinished proofs."""

import asyncio
from collections.abc import Sequence

import pytest

from envgym.agents.search.scorers import SearchObservation
from envgym.core.messages import Message, Role
from studies.environments.proof_progress import ProofProgress

START = "Prove this theorem.\n\nTheorem goal : p.\n\n1 goal\n\n  ====\n  p"
TWO, BASE = "2 goals\n\n  ====\n  p 0", "1 goal\n\n  ====\n  p (S k)"


def progress(shown: Sequence[str], *, is_over: bool = False) -> float:
    pairs = [(Message(role=Role.USER, content=text), Message(role=Role.ASSISTANT, content="simpl.")) for text in shown]
    messages = tuple(message for pair in pairs for message in pair)[:-1]
    state = SearchObservation(messages=messages, token_ids=(), num_turns=len(shown) - 1, is_over=is_over, logprob=None)
    return asyncio.run(_first(state))


async def _first(state: SearchObservation) -> float:
    (value,) = await ProofProgress()([state])
    return value


@pytest.mark.parametrize(
    "shown, value",
    [
        ([START], 1 / 2),
        ([START, TWO], 2 / 4),
        ([START, TWO, BASE], 3 / 4),
        ([START, TWO, "Failed: no such reference."], 0.0),
        ([START, TWO, "Failed: no such reference.", BASE], 3 / 4),
        ([START, TWO, BASE, BASE], 0.0),  # the tactic changed nothing
        ([START, TWO, TWO.replace("p 0", "0 = 0"), BASE], 4 / 5),
    ],
)
def test_progress_is_states_over_states_and_open_goals(shown: Sequence[str], value: float) -> None:
    assert progress(shown) == value


def test_episode_that_has_ended_goes_nowhere() -> None:
    assert progress([START, TWO], is_over=True) == 0.0
