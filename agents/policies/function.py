"""A policy that is a Python function from the conversation to the reply: rules, a client of your own, a person."""

from collections.abc import Callable, Sequence

from envgym.agents.protocols import FinishReason
from envgym.agents.rollout.messages import MessagePolicy, MessageReply, MessageRequest
from envgym.core.messages import Action, Message
from envgym.errors import PolicyFailure
from envgym.parsing import parse_action

ReplyFunction = Callable[[Sequence[Message]], str]
"""Returns the reply to a conversation, as text in which tool calls are written, or as an `Action`."""


class FunctionPolicy(MessagePolicy):
    """Answers conversations by a function."""

    def __init__(self, function: ReplyFunction) -> None:
        """Take the function."""
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
