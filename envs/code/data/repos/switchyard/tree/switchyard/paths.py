"""Questions about all that a machine can do."""

from collections import deque

from switchyard.machine import ANY


def _steps(transitions, state):
    """Return (event, next state) for all that is possible in a state, sorted by event."""
    own = {event: new for (old, event), new in transitions.items() if old == state}
    general = {event: new for (old, event), new in transitions.items() if old == ANY}
    return sorted({**general, **own}.items())


def shortest(transitions, start, goal):
    """Return the fewest events that lead from a state to another, or None; of equally many, the first by name."""
    waiting = deque([(start, [])])
    seen = {start}
    while waiting:
        state, events = waiting.popleft()
        if state == goal:
            return events
        for event, new in _steps(transitions, state):
            if new not in seen:
                seen.add(new)
                waiting.append((new, [*events, event]))
    return None


def reachable(transitions, start):
    """Return all states that can be reached, sorted; the first one too."""
    seen = {start}
    waiting = [start]
    while waiting:
        for _, new in _steps(transitions, waiting.pop()):
            if new not in seen:
                seen.add(new)
                waiting.append(new)
    return sorted(seen)


def unreachable(transitions, start):
    """Return the states that are named and cannot be reached, sorted."""
    named = {state for state, _ in transitions} | set(transitions.values())
    return sorted(named - {ANY} - set(reachable(transitions, start)))
