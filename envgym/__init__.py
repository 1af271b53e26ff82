"""Text environments with verifiable rewards, an agent loop and a trainer, joined by one tree of turns.

Importing this package registers every environment lazily in Gymnasium's registry and imports none of them.
The four parts are `envgym` (the contract of environments, and tools to write them), `envgym.envs`, `envgym.agents` and
`envgym.trainer`; `train`, `evaluate` and `play_episode` combine them, and load them when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from envgym.core.version import __version__
from envgym.registry import list_ids, make, register

if TYPE_CHECKING:
    from envgym.api import evaluate, play_episode, train
    from envgym.core.messages import Action, Message, Observation, Role, TextPart, ToolCall
    from envgym.core.tasks import Split, Task
    from envgym.core.turns import Ending, Invalid, Scored
    from envgym.env import Env, ForkCapability
    from envgym.records import Reply, StepResult
    from envgym.tools import tool

_MODULES = {
    "envgym.api": ("evaluate", "play_episode", "train"),
    "envgym.core.messages": ("Action", "Message", "Observation", "Role", "TextPart", "ToolCall"),
    "envgym.core.tasks": ("Split", "Task"),
    "envgym.core.turns": ("Ending", "Invalid", "Scored"),
    "envgym.env": ("Env", "ForkCapability"),
    "envgym.records": ("Reply", "StepResult"),
    "envgym.tools": ("tool",),
}
"""Module -> public names that it defines; loaded on first use so that `import envgym` stays fast."""

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
    "StepResult",
    "Task",
    "TextPart",
    "ToolCall",
    "__version__",
    "evaluate",
    "list_ids",
    "make",
    "play_episode",
    "register",
    "tool",
    "train",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module 'envgym' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return __all__
