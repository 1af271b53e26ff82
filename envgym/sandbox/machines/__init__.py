"""Machines: containers that live for many commands, as tasks in containers need.

A back-end builds images and starts machines. A failure of a machine itself is a `ToolInfraFailure`, which makes a
reward invalid, never 0.
"""

from envgym.sandbox.machines.records import (
    DEFAULT_OUTPUT,
    MAX_GET,
    CommandResult,
    Machine,
    MachineBackend,
    MachineSpec,
)
from envgym.sandbox.machines.shell import MachineShell

__all__ = [
    "DEFAULT_OUTPUT",
    "MAX_GET",
    "CommandResult",
    "Machine",
    "MachineBackend",
    "MachineShell",
    "MachineSpec",
]
