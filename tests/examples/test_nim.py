"""Nim, the example of a game of two: moves, endings, and what the other side is told."""

from collections.abc import Sequence

import pytest

import envgym
from envgym import Message, Role, Split, Task
from envgym.party import ScriptedParty
from tests.examples.test_plugins import plugin

NIM = plugin("nim.py:Nim")


class Recorder(ScriptedParty):
    """Makes the moves of a list, and keeps what it is told."""

    told: tuple[int, float] | None = None

    def end(self, messages: Sequence[Message], reward: float, task: Task) -> None:
        self.told = (sum(message.role is Role.ASSISTANT for message in messages), reward)


def heap(stones: int) -> Task:
    return Task(id="t", prompt=f"{stones} stones", payload={"stones": stones}, split=Split.TRAIN)


@pytest.mark.parametrize(
    "stones, moves, answers, reward, told",
    [
        (5, ["1", "I take 3"], ["1"], 1.0, (1, 0.0)),  # 5 - 1 - 1 = 3, and the agent takes them
        (5, ["2"], ["3"], 0.0, (1, 1.0)),  # 5 - 2 = 3, and the other side takes them
        (5, ["4"], [], 0.0, (0, 1.0)),
        (5, ["1"], ["none"], 1.0, (1, 0.0)),
        (5, ["3", "3"], ["1"], 0.0, (1, 1.0)),  # one stone is left
    ],
)
def test_games_by_hand(
    stones: int, moves: list[str], answers: list[str], reward: float, told: tuple[int, float]
) -> None:
    other = Recorder(answers)
    env = envgym.make(NIM, parties={"opponent": other})
    env.reset(options={"task": heap(stones)})
    results = [env.step(move) for move in moves]
    assert [result.terminated for result in results] == [False] * (len(moves) - 1) + [True]
    assert sum(result.reward for result in results) == reward
    assert other.told == told


def test_oracle_wins_where_a_first_move_can() -> None:
    env = envgym.make(NIM)
    for index in range(6):
        _, info = env.reset(seed=index, options={"split": "train", "index": index})
        is_over, reward = False, 0.0
        while not is_over:
            _, reward, is_over, _, _ = env.step(env.unwrapped.oracle())
        if info["envgym"].task.payload["stones"] % 4:
            assert reward == 1.0
