"""What the study of environments adds: a value of unfinished proofs, and demonstrations by one who has to search."""

import asyncio
from collections.abc import Sequence

import pytest

from envgym.agents.search.scorers import SearchObservation
from envgym.core.messages import Message, Role
from envgym.core.tasks import Split
from examples.environments.proof_progress import ProofProgress
from examples.environments.searching import SearchingHousehold

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


def searched(env: SearchingHousehold, index: int) -> tuple[list[str], list[str], float]:
    """Play a task: the commands, what was shown after each, and the reward."""
    env.reset(seed=index, options={"task": env.tasks.task(Split.TRAIN, index)})
    commands: list[str] = []
    shown: list[str] = []
    while True:
        commands.append(env.oracle())
        result = env.step(commands[-1])
        shown.append(str(result.observation))
        if result.terminated or result.truncated:
            return commands, shown, float(result.reward)


def test_search_looks_everywhere_once_and_finds_the_thing() -> None:
    env = SearchingHousehold(kinds="place", distractors=0, max_turns=None)
    for index in range(20):
        commands, shown, reward = searched(env, index)
        assert reward == 1.0
        found = next(number for number, command in enumerate(commands) if command.startswith("take "))
        went = [command for command in commands[:found] if command.startswith("go to ")]
        assert len(set(went)) == len(went), "no place is searched twice"
        thing = env.state.layout.goal.thing
        assert not any(f"{thing} " in text for text in shown[: found - 1]), "what is seen is taken"


def test_search_does_not_know_where_the_thing_is() -> None:
    env = SearchingHousehold(kinds="place", distractors=0, max_turns=None)
    first = [commands[0] for commands, _, _ in (searched(env, index) for index in range(40))]
    direct = [searched_directly(index) for index in range(40)]
    assert sum(one == other for one, other in zip(first, direct, strict=True)) < 16  # as by chance


def searched_directly(index: int) -> str:
    """Return the first command of the oracle that knows."""
    env = SearchingHousehold(kinds="place", distractors=0, max_turns=None)
    env.reset(seed=index, options={"task": env.tasks.task(Split.TRAIN, index)})
    return super(SearchingHousehold, env).oracle() if env.state.seen == 0 else ""
