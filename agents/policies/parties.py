"""Conversation partners of an env that language models play: a judge, a user, an opponent.

An `EndpointParty` asks a service. A `LocalParty` asks a frozen model in this process, for which it loads torch.
"""

import asyncio
import atexit
import math
import os
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from envgym.agents.loop.agent import Agent, AgentSettings, make_agent
from envgym.agents.models.loading import check_model, load
from envgym.agents.policies.openai import OpenAIPolicy
from envgym.agents.protocols import GenerateRequest, Policy, Sampling
from envgym.agents.rollout.messages import MessageRequest
from envgym.agents.settings import EndpointSettings
from envgym.config.settings import build_settings
from envgym.core.json_types import visible
from envgym.core.messages import Action, Message, Role
from envgym.errors import InvalidInput, PartyFailure, PolicyFailure
from envgym.party import LanguageModel
from envgym.runtime.event_loop import LoopThread, run_coroutine
from envgym.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

T = TypeVar("T")


class SamplingParty(LanguageModel):
    """A language model whose replies depend on a seed and on the conversation."""

    def __init__(
        self, where: str, *, temperature: float, sampling_temperature: float, max_new_tokens: int, seed: int
    ) -> None:
        """Set how it samples; `where` names the party. Raises: InvalidInput: a setting is out of range."""
        got, do = sampling_temperature, "pass e.g. 1; only replies may take the most probable tokens"
        InvalidInput.unless(got > 0, "sampling_temperature", "be above 0", got, where=where, do=do)
        self._replies = Sampling(temperature=temperature, max_new_tokens=max_new_tokens)
        self._samples = Sampling(temperature=sampling_temperature, max_new_tokens=max_new_tokens)
        for sampling in (self._replies, self._samples):
            sampling.check(where)
        self._where, self._seed = where, seed

    @abstractmethod
    def say(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        """Return the next message. Raises: PartyFailure: it could not be had."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message. Raises: PartyFailure: it could not be had, or is empty."""
        texts = [text for message in messages for text in (message.role.value, message.content)]
        return self._message(messages, self._replies, derive_seed(self._where, self._seed, *texts))

    def sample(self, messages: Sequence[Message], *, seed: int) -> Message:
        """Return a message that is sampled by `seed`, as far as the model takes one. Raises: as `reply`."""
        return self._message(messages, self._samples, seed)

    def _message(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> Message:
        content = self.say(messages, sampling, seed)
        if not content.strip():
            raise PartyFailure(f"{self._where} said nothing in {sampling.max_new_tokens} tokens")
        return Message(role=Role.ASSISTANT, content=content)


# ---- a service -------------------------------------------------------------------------------------------------------


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
        probabilities = self._ask(lambda policy: policy.first_token_probabilities(request))
        plain = [word.casefold() for word in words]
        return [sum(p for token, p in probabilities.items() if token.strip().casefold() == word) for word in plain]

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
            future = self._loop.begin(work())
        return future.result()

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.close(self._close_policies())

    async def _close_policies(self) -> None:
        while self._policies:
            await self._policies.popitem()[1].__aexit__()


_shared = _Connections()
atexit.register(_shared.close)


# ---- a model in this process -----------------------------------------------------------------------------------------


class LocalParty(SamplingParty):
    """Answers conversations by a model in this process, in the chat template of its tokenizer.

    It may be shared between environments and threads, which wait for each other. Parties of one model share weights.
    """

    def __init__(
        self,
        *,
        path: str,
        temperature: float = 0.0,
        sampling_temperature: float = 1.0,
        max_new_tokens: int = 256,
        device: str = "cpu",
        dtype: str = "float32",
        thinking: bool | None = None,
        seed: int = 0,
    ) -> None:
        """Name the model, which is loaded when it is first asked.

        Args:
            path: as `model.name`: `tiny`, `smollm2`, a directory, or a hub name.
            temperature: of replies, at least 0; 0 takes the most probable.
            sampling_temperature: of `sample`, such as the rationales of a `GenerativeVerifier`; above 0.
            max_new_tokens: most tokens of a reply, its thinking included.
            device: of its weights.
            dtype: of its weights.
            thinking: whether it thinks before it replies, where its template asks; None: as the template has it.
            seed: of replies; each conversation has its own, derived from it.

        Raises: UnknownName, InvalidInput: there is no such model, or a setting is out of range.
        """
        check_model(path)
        super().__init__(
            path,
            temperature=temperature,
            sampling_temperature=sampling_temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        self.path, self._device, self._dtype, self._thinking = path, device, dtype, thinking

    def say(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        """Return the next message. Raises: PartyFailure: the model failed."""
        return str(self._model().generate(messages, sampling, seed).content)

    def compute_probabilities(self, messages: Sequence[Message], words: Sequence[str]) -> list[float]:
        """Return how probable it is that the reply begins with each word, as given or in lower, upper or title case.

        It is a word's own tokens that are scored, with and without a space before it. Raises: PartyFailure: the model
        failed.
        """
        model = self._model()
        context = model.context(messages)
        spelled = [sorted({model.spell(form) for form in _forms(word)}) for word in words]
        logprobs = iter(model.compute_logprobs(context, [token_ids for forms in spelled for token_ids in forms]))
        return [math.fsum(math.exp(next(logprobs)) for _ in forms) for forms in spelled]

    def _model(self) -> "_LocalModel":
        with _loading:
            return _load(self.path, self._device, self._dtype, self._thinking)


def _forms(word: str) -> list[str]:
    cases = (word, word.lower(), word.upper(), word.title())
    return [f"{space}{case}" for space in ("", " ") for case in cases]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalModel:
    """A model that is used by one thread at a time."""

    module: "PreTrainedModel"
    policy: Policy
    agent: Agent
    lock: threading.Lock = field(default_factory=threading.Lock)

    def context(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens [T] of a conversation, up to where the reply begins. Raises: PartyFailure."""
        try:
            segments = self.agent.start(messages, ()).segments
        except PolicyFailure as error:
            raise PartyFailure(visible(str(error))) from error
        return tuple(token for segment in segments for token in segment.token_ids)

    def spell(self, text: str) -> tuple[int, ...]:
        stops, token_ids = set(self.agent.renderer.stop_token_ids), self.agent.renderer.encode_action(Action(text))
        while token_ids and token_ids[-1] in stops:
            token_ids = token_ids[:-1]
        return token_ids

    def generate(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> Action:
        stops = tuple(self.agent.renderer.stop_token_ids)
        sampling = Sampling(
            temperature=sampling.temperature, max_new_tokens=sampling.max_new_tokens, stop_token_ids=stops
        )
        request = GenerateRequest(token_ids=self.context(messages), sampling=sampling, seed=seed)
        try:
            with self.lock:
                return self.agent.parse(run_coroutine(self.policy.generate(request)))
        except PolicyFailure as error:
            raise PartyFailure(visible(str(error))) from error

    def compute_logprobs(self, context: tuple[int, ...], continuations: Sequence[tuple[int, ...]]) -> list[float]:
        """Return the log-prob of each continuation of a context, nats; the context is computed once."""
        import torch  # heavy

        rests = [token_ids[:-1] for token_ids in continuations if len(token_ids) > 1]
        with self.lock, torch.no_grad():
            output = self.module(self._tensor([context]), use_cache=True, logits_to_keep=1)
            rows = [output.logits.expand(max(1, len(rests)), -1, -1)]
            if rests:
                output.past_key_values.batch_repeat_interleave(len(rests))
                width = max(map(len, rests))  # what follows a row's end changes nothing before it
                padded = [rest + (0,) * (width - len(rest)) for rest in rests]
                rows.append(self.module(self._tensor(padded), past_key_values=output.past_key_values).logits)
            logprobs_NSV = torch.cat(rows, dim=1).float().log_softmax(-1).cpu()
        number = iter(range(len(rests)))
        return [
            math.fsum(
                logprobs_NSV[next(number) if len(token_ids) > 1 else 0, range(len(token_ids)), token_ids].tolist()
            )
            for token_ids in continuations
        ]

    def _tensor(self, rows: Sequence[tuple[int, ...]]) -> "Tensor":
        import torch  # heavy

        return torch.tensor(rows, device=self.module.device)


_loading = threading.Lock()


@cache
def _load(path: str, device: str, dtype: str, thinking: bool | None) -> _LocalModel:
    from envgym.agents.policies.engine.policy import TransformersPolicy  # heavy

    loaded = load(path, device=device, dtype=dtype)
    agent = make_agent(AgentSettings(thinking=thinking), loaded.tokenizer)
    return _LocalModel(module=loaded.model, policy=TransformersPolicy(loaded.model), agent=agent)
