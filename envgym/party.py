"""A conversation partner of an env: a simulated user, an opponent, a judge. Sync, message level, injected.

An env never imports a policy; `make(..., parties={"user": party})` hands the party in.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np

from envgym.config.plugins import PluginKind
from envgym.config.tables import KINDS
from envgym.core.messages import Message, Role
from envgym.core.tasks import Task
from envgym.errors import PartyFailure
from envgym.seeds import generator

ScriptFunction = Callable[[Sequence[Message], np.random.Generator], str]
Script = Sequence[str] | ScriptFunction
"""Replies in order, or a function of the conversation and of a generator."""


class Party(Protocol):
    """Answers a conversation, seen from its own side: its earlier replies are the `ASSISTANT` messages."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message of this party. Raises: PartyFailure: it could not answer."""
        ...


PARTY: Final[PluginKind[Party]] = KINDS["party"]


@runtime_checkable
class Player(Party, Protocol):
    """A party that plays for itself: an env of several players tells it what an episode has paid it."""

    def end(self, messages: Sequence[Message], reward: float, task: Task) -> None:
        """Take in the end of an episode.

        Args:
            messages: the whole conversation, seen from its side.
            reward: what it paid this party.
            task: of the episode.
        """
        ...


@runtime_checkable
class LanguageModel(Party, Protocol):
    """A party that is a language model: it samples by a seed, and says how probable words are."""

    def sample(self, messages: Sequence[Message], *, seed: int) -> Message:
        """Return a reply that the seed decides, as far as the model can. Raises: PartyFailure: it could not answer."""
        ...

    def compute_probabilities(self, messages: Sequence[Message], words: Sequence[str]) -> list[float]:
        """Return how probable it is that the reply begins with each of some words, in any letter case.

        Raises: PartyFailure: the model does not say.
        """
        ...


class ScriptedParty:
    """A party whose reply depends on the seed and on the conversation, and on nothing else.

    It holds no state between replies, so forks, threads and replays that share it agree by construction.
    """

    def __init__(self, script: Script, *, seed: int = 0) -> None:
        """Take the script.

        Args:
            script: Replies in their order: number k goes to a conversation that holds k replies already; in code also a
                function of the conversation and a generator.
            seed: Seed of that generator.
        """
        self.script: Script = script if callable(script) else tuple(script)
        self.seed = seed

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message. Raises: PartyFailure: the list has ended, or the function failed."""
        if callable(self.script):
            names = [part for message in messages for part in (message.role.value, message.content)]
            try:
                text = self.script(messages, generator(self.seed, "party", *names))
            except Exception as error:  # whatever the script raises, the party is what broke
                raise PartyFailure(f"the script of a party failed: {type(error).__name__}: {error}") from error
        else:
            num_replies = sum(message.role is Role.ASSISTANT for message in messages)
            if num_replies >= len(self.script):
                must, do = f"hold more than {num_replies} replies", "add replies or end the episode earlier"
                raise PartyFailure.of("script", must, len(self.script), where="ScriptedParty", do=do)
            text = self.script[num_replies]
        return Message(role=Role.ASSISTANT, content=text)
