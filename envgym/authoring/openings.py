"""Prompts that are lists of messages: how a task keeps them, and with which messages its episode opens.

The payload field `prompt` holds the list in OpenAI's form. The system message joins the standing instructions of the
env; earlier turns of the assistant are context.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from envgym.chats.fields import refusal
from envgym.chats.openai import read_openai, write_openai
from envgym.core.json_types import JsonValue
from envgym.core.messages import Message, Role
from envgym.core.tasks import Task


def read_prompt(value: object, *, what: str, where: str) -> tuple[str, JsonValue]:
    """Read a prompt.

    Args:
        value: a text, or a list of messages in OpenAI's form.
        what: names the prompt in errors.
        where: names the row in errors.

    Returns: its text, and what the payload field `prompt` holds.

    Raises: InvalidInput: it is neither, or no agent could answer it.
    """
    if isinstance(value, str):
        return value, value
    if not isinstance(value, list | tuple) or not value or isinstance(value[0], str):
        raise refusal(what, "hold text or a list of messages", value, where)
    messages = [_message(item, f"message {index} of {where}") for index, item in enumerate(value)]
    _check_order(messages, what, where)
    return prompt_text(messages), [write_openai(message) for message in messages]


def prompt_text(messages: Sequence[Message]) -> str:
    """Return the messages after the system message as one text; of several, each begins with its role."""
    spoken = [message for message in messages if message.role is not Role.SYSTEM]
    if len(spoken) == 1:
        return spoken[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in spoken)


def opening_text(messages: Sequence[Message]) -> str:
    """Return all messages as one text: the system message, and then the text that `prompt_text` returns."""
    return "\n\n".join(text for text in (system_text(messages), prompt_text(messages)) if text)


def system_text(messages: Sequence[Message]) -> str:
    """Return the text of the system message; empty if there is none."""
    return "\n\n".join(message.content for message in messages if message.role is Role.SYSTEM)


def opening_messages(task: Task) -> tuple[Message, ...]:
    """Return the messages with which an episode of the task opens: those of its prompt, or its text as the user's."""
    prompt = task.payload.get("prompt")
    if not isinstance(prompt, list) or not all(isinstance(item, Mapping) and "role" in item for item in prompt):
        return (Message(role=Role.USER, content=task.prompt),)
    return tuple(read_openai(item, where=f"prompt of task {task.id}") for item in prompt)


def _message(data: object, where: str) -> Message:
    message = read_openai(data, where=where)
    is_text = message.role is not Role.TOOL and not message.tool_calls
    if not is_text:
        got = f"a {'tool message' if message.role is Role.TOOL else 'tool call'}"
        raise refusal("prompt", "hold texts of the system, the user and the assistant", got, where)
    return message


def _check_order(messages: Sequence[Message], what: str, where: str) -> None:
    """Refuse an order of messages that chat templates refuse, or after which it is not the agent's turn."""
    roles = [message.role for message in messages]
    spoken = roles[1:] if roles[0] is Role.SYSTEM else roles
    must = ""
    if not spoken or spoken[-1] is not Role.USER:
        must = "end with a message of the user"
    elif Role.SYSTEM in spoken:
        must = "have its system message first"
    elif spoken[0] is not Role.USER:
        must = "begin with the system or the user"
    elif (Role.ASSISTANT, Role.ASSISTANT) in pairwise(roles):
        must = "have a message of the user between two of the assistant"
    if must:
        raise refusal(what, must, f"the roles {', '.join(roles)}", where)
