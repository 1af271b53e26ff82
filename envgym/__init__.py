"""Text environments with verifiable rewards, an agent loop and a trainer, joined by one tree of turns.

Importing this package registers every environment lazily in Gymnasium's registry and imports none of them.
The four rooms are `envgym` (contract and toolbox), `envgym.envs`, `envgym.agents` and `envgym.trainer`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from envgym.registry import list_ids as list_ids
from envgym.registry import make as make
from envgym.registry import register as register

if TYPE_CHECKING:
    from envgym.core.endings import Ending as Ending
    from envgym.core.messages import Action as Action
    from envgym.core.messages import Message as Message
    from envgym.core.messages import Observation as Observation
    from envgym.core.messages import Role as Role
    from envgym.core.messages import TextPart as TextPart
    from envgym.core.messages import ToolCall as ToolCall
    from envgym.core.rewards import Invalid as Invalid
    from envgym.core.rewards import Scored as Scored
    from envgym.core.tasks import Split as Split
    from envgym.core.tasks import Task as Task
    from envgym.env import Env as Env
    from envgym.env import ForkCapability as ForkCapability
    from envgym.env import Reply as Reply
    from envgym.tools import tool as tool

__version__ = "0.1.0"

_HOMES = {
    "Action": "envgym.core.messages",
    "Ending": "envgym.core.endings",
    "Env": "envgym.env",
    "ForkCapability": "envgym.env",
    "Invalid": "envgym.core.rewards",
    "Message": "envgym.core.messages",
    "Observation": "envgym.core.messages",
    "Reply": "envgym.env",
    "Role": "envgym.core.messages",
    "Scored": "envgym.core.rewards",
    "Split": "envgym.core.tasks",
    "Task": "envgym.core.tasks",
    "TextPart": "envgym.core.messages",
    "ToolCall": "envgym.core.messages",
    "tool": "envgym.tools",
}
"""Public name -> module that defines it; loaded on first use so that `import envgym` stays fast."""

__all__ = [
    "Action",
    "Ending",
    "Env",
    "ForkCapability",
    "Invalid",
    "Message",
    "Observation",
    "Reply",
    "Role",
    "Scored",
    "Split",
    "Task",
    "TextPart",
    "ToolCall",
    "__version__",
    "list_ids",
    "make",
    "register",
    "tool",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'envgym' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return __all__
