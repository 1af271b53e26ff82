"""Read the replies of chat services: the reply as a whole, and the probabilities of its first token."""

import math
from collections.abc import Mapping

from envgym.agents.policies.endpoint import read_count
from envgym.agents.protocols import FinishReason
from envgym.agents.rollout.messages import MessageReply
from envgym.chats.replies import (
    CONTEXT_FULL,
    BadResponse,
    field_of,
    first_choice,
    get_nested,
    is_context_full,
    is_cut,
    read_message,
)
from envgym.core.messages import Action

_ROUNDING = 1e-3
"""Log-probs may be above 0 by so much."""


def read_response(body: object, *, has_tools: bool = True) -> MessageReply:
    """Read a response; with `has_tools`, also calls that the service left in the text.

    Raises: BadResponse: a clause that says what is missing.
    """
    choice = first_choice(body)
    message = field_of(choice, "message", dict, "the choice")
    return MessageReply(
        action=read_message(message, has_tools=has_tools),
        finish_reason=FinishReason.LENGTH if is_cut(choice) else FinishReason.STOP,
        context_is_full=choice.get("finish_reason") in CONTEXT_FULL,
        prompt_tokens=read_count(body, "usage", "prompt_tokens"),
        cached_tokens=read_count(body, "usage", "prompt_tokens_details", "cached_tokens"),
        completion_tokens=read_count(body, "usage", "completion_tokens"),
    )


def read_first_token(body: object) -> Mapping[str, float]:
    """Read the probabilities of a reply's first token. Raises: BadResponse: a clause that says what is missing."""
    tokens = field_of(field_of(first_choice(body), "logprobs", dict, "the choice"), "content", list, "the log-probs")
    if not tokens:
        raise BadResponse("the log-probs hold no token")
    probabilities: dict[str, float] = {}
    for item in field_of(tokens[0], "top_logprobs", list, "the first token"):
        token, logprob = get_nested(item, "token"), get_nested(item, "logprob")
        if not isinstance(token, str) or not isinstance(logprob, int | float) or not logprob <= _ROUNDING:
            raise BadResponse("a log-prob is no number up to 0")
        probabilities[token] = probabilities.get(token, 0.0) + math.exp(logprob)
    return probabilities


def read_full_context(status: int, body: object, *, max_new_tokens: int) -> MessageReply | None:
    """Return the reply to a conversation that is too long; None: it is refused for another reason."""
    if not is_context_full(status, body, max_new_tokens):
        return None
    return MessageReply(action=Action(), finish_reason=FinishReason.LENGTH, context_is_full=True)
