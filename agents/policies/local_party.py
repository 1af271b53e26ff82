"""A conversation partner of an env that a frozen model in this process plays: a judge, a user, an opponent."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import torch

from envgym.agents.loop.agent import Agent, AgentSettings, make_agent
from envgym.agents.models.loading import check_model, load
from envgym.agents.policies.sampling_party import SamplingParty
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.core.json_types import visible
from envgym.core.messages import Action, Message
from envgym.errors import PartyFailure, PolicyFailure
from envgym.event_loop import run_coroutine

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    policy: TransformersPolicy
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
        """Return the tokens of a text with which a reply begins."""
        stops, token_ids = set(self.agent.renderer.stop_token_ids), self.agent.renderer.encode_action(Action(text))
        while token_ids and token_ids[-1] in stops:
            token_ids = token_ids[:-1]
        return token_ids

    def generate(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> Action:
        """Sample a reply. Raises: PartyFailure."""
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

    def _tensor(self, rows: Sequence[tuple[int, ...]]) -> torch.Tensor:
        return torch.tensor(rows, device=self.module.device)


_loading = threading.Lock()


@cache
def _load(path: str, device: str, dtype: str, thinking: bool | None) -> _LocalModel:
    loaded = load(path, device=device, dtype=dtype)
    agent = make_agent(AgentSettings(thinking=thinking), loaded.tokenizer)
    return _LocalModel(module=loaded.model, policy=TransformersPolicy(loaded.model), agent=agent)
