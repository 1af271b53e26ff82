"""Messages in other words: a hint after the task, or words around it."""

from collections.abc import Sequence

from envgym.core.messages import GUIDE, Message, Role, TextPart, text_of
from envgym.errors import InvalidInput

TASK = "{task}"
"""Stands for the task's own words in a text that takes their place."""


def with_hint(messages: Sequence[Message], hint: str) -> tuple[Message, ...]:
    """Return the messages with a hint at the end of the last one, where that is the user's; else as one of its own.

    Many chat templates refuse two messages of the user in a row.
    """
    if not messages or messages[-1].role is not Role.USER:
        return (*messages, Message(role=Role.USER, content=hint, name=GUIDE))
    *before, last = messages
    return (*before, Message(role=last.role, parts=(*last.parts, TextPart(f"\n\n{hint}")), name=last.name))


def reworded(messages: Sequence[Message], words: str) -> tuple[Message, ...]:
    """Return the messages with the user's last one in other words: `words`, with its content in place of `{task}`.

    Words without `{task}` are a hint.

    Raises: InvalidInput: no message is the user's, or it does not hold text alone.
    """
    if TASK not in words:
        return with_hint(messages, words)
    at = max((place for place, message in enumerate(messages) if message.role is Role.USER), default=None)
    if at is None:
        do = "choose an agent that shows the task as a message of the user"
        raise InvalidInput.of("context", "hold a message of the user", "none", where="other words of a task", do=do)
    message = Message(role=Role.USER, content=words.replace(TASK, text_of(messages[at])), name=messages[at].name)
    return (*messages[:at], message, *messages[at + 1 :])
