"""Policies without a model: exact tokens from a script, or messages from a Python function."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy
from envgym.agents.rollout.messages import MessagePolicy, MessageReply, MessageRequest
from envgym.core.messages import Action, Message
from envgym.errors import PolicyFailure
from envgym.parsing import parse_action

if TYPE_CHECKING:
    from torch import Tensor

ScriptedReply = Sequence[int] | Generation | Exception
"""Token ids (cut at the request's limit), a whole generation, or what to raise."""


class ScriptedPolicy(Policy):
    """Answers from a list, in the order of the requests, or by a function of the request; every log-prob is 0.0.

    The function makes episodes independent of the order of their requests; a list suits one episode at a time.
    """

    def __init__(
        self, script: Iterable[ScriptedReply] | Callable[[GenerateRequest], ScriptedReply], *, version: int = 0
    ) -> None:
        self._answer = script if callable(script) else _from_list(script)
        self._version = version
        self.requests: list[GenerateRequest] = []
        """Every request, in order."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Say the next reply. Raises: PolicyFailure: the list has ended. Whatever the script holds to be raised."""
        self.requests.append(request)
        reply = self._answer(request)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Generation) else self._sampled(tuple(reply), request)

    def _sampled(self, token_ids: tuple[int, ...], request: GenerateRequest) -> Generation:
        token_ids = token_ids[: request.sampling.max_new_tokens]
        is_over = token_ids[-1:] != () and token_ids[-1] in request.sampling.stop_token_ids
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=(0.0,) * len(token_ids),
            raw_logprobs=None,
            finish_reason=FinishReason.STOP if is_over else FinishReason.LENGTH,
            policy_version=self._version,
        )

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return 0.0 for every token: what is scripted is certain."""
        return [(0.0,) * len(row) for row in token_ids]

    def update_weights(self, named_tensors: Iterable[tuple[str, "Tensor"]], version: int) -> None:
        """Take the version; there are no weights."""
        del named_tensors
        self.set_version(version)


def _from_list(script: Iterable[ScriptedReply]) -> Callable[[GenerateRequest], ScriptedReply]:
    replies = iter(script)

    def answer(request: GenerateRequest) -> ScriptedReply:
        del request
        for reply in replies:
            return reply
        must = "hold a reply for every request"
        raise PolicyFailure.of("script", must, "its end", where="ScriptedPolicy", do="add replies")

    return answer


ReplyFunction = Callable[[Sequence[Message]], str]
"""Returns the reply to a conversation, as text in which tool calls are written, or as an `Action`."""


class FunctionPolicy(MessagePolicy):
    """Answers conversations by a function: rules, a client of your own, a person."""

    def __init__(self, function: ReplyFunction) -> None:
        self._function = function

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: the function raised, or returned no text."""
        try:
            text: object = self._function(request.messages)
        except Exception as error:
            raise PolicyFailure(f"the policy's function raised {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            do = "return the reply as text"
            raise PolicyFailure.of("reply", "be a str", type(text).__name__, where="the policy's function", do=do)
        action = text if isinstance(text, Action) else parse_action(text)
        return MessageReply(action=action, finish_reason=FinishReason.STOP)
