"""A model that a service answers for: a judge over the OpenAI chat-completions protocol."""

import asyncio
from collections.abc import Sequence
from typing import Any

from envgym.agents.policies.openai import OpenAIPolicy
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.messages import MessageRequest
from envgym.agents.settings import EndpointSettings
from envgym.config.settings import build_settings
from envgym.core.json_types import visible
from envgym.core.messages import Message, Role
from envgym.errors import PartyFailure, PolicyFailure, SettingsError
from envgym.runtime.event_loop import run_coroutine
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.models.base import ModelContext


class EndpointModel(Model):
    """Answers conversations through an OpenAI-compatible service; also takes the keys of `engine.endpoint`."""

    def __init__(
        self,
        context: ModelContext,
        *,
        temperature: float = 0.0,
        deadline_s: float = 300.0,
        check_retries: int = 1,
        **endpoint: Any,  # checked by EndpointSettings
    ) -> None:
        """Name the service.

        Args:
            context: of the run; nothing of it is used.
            temperature: of the answers; 0 takes the most probable.
            deadline_s: longest wait for one answer with all further attempts, above 0.
            check_retries: further attempts before a service is refused at the start of a run.
            endpoint: of `EndpointSettings`: `base_url`, `model`, `timeout_s`, `max_retries` and the others.

        Raises: SettingsError: a setting out of range, or unknown.
        """
        del context
        self._settings = build_settings(EndpointSettings, endpoint, where="model endpoint")
        must, do = "be above 0", "give the seconds that one answer may take"
        SettingsError.unless(deadline_s > 0, "deadline_s", must, deadline_s, where="model endpoint", do=do)
        self._temperature, self._deadline_s, self._check_retries = temperature, deadline_s, check_retries
        self._policy: OpenAIPolicy | None = None

    def check(self) -> None:
        """Ask it something short. Raises: SettingsError: it does not answer."""
        run_coroutine(self._check())

    async def _check(self) -> None:
        retries = min(self._check_retries, self._settings.max_retries)
        hello = [Message(role=Role.USER, content="Say OK.")]
        async with OpenAIPolicy(self._settings.model_copy(update={"max_retries": retries})) as policy:
            try:
                await self._ask(policy, hello, seed=0, max_new_tokens=8)
            except PartyFailure as error:
                do = "start the service, or correct base_url, model and api_key_env"
                where = f"{self._settings.model} at {self._settings.base_url}"
                raise SettingsError.of("served model", "answer", str(error), where=where, do=do) from error

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        """Answer a conversation. Raises: PartyFailure: no answer came in time."""
        if self._policy is None:  # made in the event loop that it is used in
            self._policy = OpenAIPolicy(self._settings)
        return await self._ask(self._policy, messages, seed=seed, max_new_tokens=max_new_tokens)

    async def close(self) -> None:
        if self._policy is not None:
            await self._policy.__aexit__()
            self._policy = None

    async def _ask(self, policy: OpenAIPolicy, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        sampling = Sampling(temperature=self._temperature, max_new_tokens=max_new_tokens)
        request = MessageRequest(messages=tuple(messages), tools=(), sampling=sampling, seed=seed)
        try:
            async with asyncio.timeout(self._deadline_s):
                return str((await policy.reply(request)).action.content)
        except TimeoutError:
            raise PartyFailure(f"no answer within {self._deadline_s:g} s") from None
        except PolicyFailure as error:
            raise PartyFailure(visible(str(error))) from error
