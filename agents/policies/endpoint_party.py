"""A conversation partner of an env that an OpenAI-compatible service answers for: a judge, a user, an opponent."""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from envgym.agents.policies.openai import OpenAIPolicy
from envgym.agents.policies.sampling_party import SamplingParty
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.messages import MessageRequest
from envgym.agents.settings import EndpointSettings
from envgym.core.json_types import visible
from envgym.core.messages import Message
from envgym.errors import InvalidInput, PartyFailure, PolicyFailure
from envgym.event_loop import LoopThread
from envgym.settings import build_settings

T = TypeVar("T")


class EndpointParty(SamplingParty):
    """Answers conversations through an OpenAI-compatible service; also takes the keys of `engine.endpoint`.

    It may be shared between environments and threads. Parties of equal endpoint settings share connections and limits.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        sampling_temperature: float = 1.0,
        max_new_tokens: int = 1024,
        deadline_s: float = 300.0,
        seed: int = 0,
        **endpoint: Any,  # checked by EndpointSettings
    ) -> None:
        """Name the service.

        Args:
            temperature: of replies, at least 0; 0 takes the most probable.
            sampling_temperature: of `sample`, such as the rationales of a `GenerativeVerifier`; above 0.
            max_new_tokens: most tokens of a reply.
            deadline_s: longest wait for one answer with all further attempts, above 0.
            seed: of replies; each conversation has its own, derived from it.
            endpoint: of `EndpointSettings`: `base_url`, `model`, `timeout_s`, `max_retries` and the others.

        Raises: SettingsError: an endpoint setting out of range, or unknown. InvalidInput: another setting is.
        """
        self.settings = build_settings(EndpointSettings, endpoint, where="party endpoint")
        where, do = "party endpoint", "give the seconds that one answer may take"
        InvalidInput.unless(deadline_s > 0, "deadline_s", "be above 0", deadline_s, where=where, do=do)
        super().__init__(
            f"{self.settings.model} at {self.settings.base_url}",
            temperature=temperature,
            sampling_temperature=sampling_temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        self._deadline_s = deadline_s

    def say(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        """Return the next message. Raises: PartyFailure: no answer came in time, or one that is cut."""
        return str(self._ask(lambda policy: policy.reply(_request(messages, sampling, seed))).action.content)

    def compute_probabilities(self, messages: Sequence[Message], words: Sequence[str]) -> list[float]:
        """Return how probable it is that the reply begins with each word, in any letter case, as one token.

        Tokens that are not among the twenty most probable count 0. Raises: PartyFailure: the service did not say.
        """
        request = _request(messages, Sampling(max_new_tokens=1), 0)
        found = self._ask(lambda policy: policy.first_token_probabilities(request))
        plain = [word.casefold() for word in words]
        return [sum(value for token, value in found.items() if token.strip().casefold() == word) for word in plain]

    def _ask(self, ask: Callable[[OpenAIPolicy], Awaitable[T]]) -> T:
        try:
            return _shared.run(self.settings, ask, deadline_s=self._deadline_s)
        except TimeoutError:
            raise PartyFailure(f"no answer within {self._deadline_s:g} s") from None
        except PolicyFailure as error:
            raise PartyFailure(visible(str(error))) from error


def _request(messages: Sequence[Message], sampling: Sampling, seed: int) -> MessageRequest:
    return MessageRequest(messages=tuple(messages), tools=(), sampling=sampling, seed=seed)


class _Connections:
    """The endpoints of all parties of this process, by their settings, used from one event loop."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin without connections in a forked child: they and their thread are the parent's."""
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._policies: dict[str, OpenAIPolicy] = {}

    def run(self, settings: EndpointSettings, ask: Callable[[OpenAIPolicy], Awaitable[T]], *, deadline_s: float) -> T:
        """Ask an endpoint, and wait. Raises: TimeoutError: the deadline has passed. What `ask` raises."""

        async def work() -> T:
            key = settings.model_dump_json()
            if key not in self._policies:
                self._policies[key] = OpenAIPolicy(settings)
            async with asyncio.timeout(deadline_s):
                return await ask(self._policies[key])

        with self._lock:
            self._loop = self._loop or LoopThread("endpoint-party")
            asked = self._loop.begin(work())
        return asked.result()

    def close(self) -> None:
        """Cancel what is asked, and close all connections; the next request opens them again."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.close(self._close_policies())

    async def _close_policies(self) -> None:
        while self._policies:
            await self._policies.popitem()[1].__aexit__()


_shared = _Connections()
atexit.register(_shared.close)


def close_connections() -> None:
    """Close the connections of all endpoint parties of this process; later requests open new ones."""
    _shared.close()
