"""Times for meetings."""

from slots.calendar import Calendar, Conflict
from slots.clock import read_span, read_time, show_time
from slots.intervals import Interval, common, merge, subtract
from slots.planner import plan, rooms_needed
from slots.repeats import occurrences

__all__ = [
    "Calendar",
    "Conflict",
    "Interval",
    "common",
    "merge",
    "occurrences",
    "plan",
    "read_span",
    "read_time",
    "rooms_needed",
    "show_time",
    "subtract",
]
