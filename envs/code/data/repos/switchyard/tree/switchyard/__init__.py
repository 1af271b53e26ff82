"""State machines and events."""

from switchyard.bus import Bus
from switchyard.machine import Machine, NoTransition
from switchyard.paths import reachable, shortest, unreachable
from switchyard.timers import Timers

__all__ = ["Bus", "Machine", "NoTransition", "Timers", "reachable", "shortest", "unreachable"]
