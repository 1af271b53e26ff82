"""An environment of two players: a heap of stones, of which each takes one, two or three; who takes the last one wins.

    envgym play examples/plugins/nim.py:Nim

The agent moves first. The other side is the party `opponent`: by default one that takes a number at random, in
training also a model of the run, which may learn from its own seat (docs/replay.md, Self-play). As a `Player` it is
told what the episode paid it: 1 less what the agent got.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envgym import Action, Env, Reply, Task
from envgym.authoring import ListTasks, TaskDraft
from envgym.core.messages import Message, Role
from envgym.party import Party, Player, ScriptedParty

RULES = "Nim. Take 1, 2 or 3 stones; who takes the last one wins. A message without a legal number loses."


def at_random(messages: Sequence[Message], generator: np.random.Generator) -> str:
    """Take one to three stones."""
    del messages
    return str(generator.integers(1, 4))


@dataclass(slots=True)
class Heap:
    """The stones that are left, and the conversation of the opponent."""

    stones: int
    messages: list[Message] = field(default_factory=list)


class Nim(Env[Heap]):
    """Take the last stone."""

    tasks = ListTasks([TaskDraft(prompt=f"{RULES} {n} stones.", payload={"stones": n}) for n in range(5, 25)])
    chance_score = 0.6
    blocking = True

    def __init__(self, **options: Any) -> None:  # parties and render_mode, as Env takes them
        """Seat an opponent that plays at random, unless another is given."""
        super().__init__(**options)
        self._opponent: Party = self.parties.get("opponent") or ScriptedParty(at_random)

    def begin(self, task: Task) -> str:
        """Show the heap."""
        self.state = Heap(stones=int(str(task.payload["stones"])))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Take the agent's stones, then the opponent's."""
        if not self._take(action.content):
            return self._over(0.0, "That is no legal move.")
        if not self.state.stones:
            return self._over(1.0, "You took the last stone.")
        self._tell(f"{RULES} {self.state.stones} stones.")
        answer = self._opponent.reply(tuple(self.state.messages))
        self.state.messages.append(answer)
        if not self._take(answer.content):
            return self._over(1.0, "The other side made no legal move.")
        if not self.state.stones:
            return self._over(0.0, "The other side took the last stone.")
        return Reply(observation=f"{self.state.stones} stones.")

    def oracle(self) -> str:
        """Leave a multiple of four, or take one."""
        return str(self.state.stones % 4 or 1)

    def _take(self, text: str) -> bool:
        """Take the stones that a message names; False: it names no legal number."""
        numbers = re.findall(r"\d+", text)
        count = int(numbers[-1]) if numbers and len(numbers[-1]) == 1 else 0
        is_legal = 1 <= count <= min(3, self.state.stones)
        self.state.stones -= count * is_legal
        return is_legal

    def _tell(self, text: str) -> None:
        self.state.messages.append(Message(role=Role.USER, content=text))

    def _over(self, reward: float, text: str) -> Reply:
        if isinstance(self._opponent, Player):
            self._opponent.end(tuple(self.state.messages), 1 - reward, self.task)
        return Reply(observation=text, reward=reward, terminated=True)
