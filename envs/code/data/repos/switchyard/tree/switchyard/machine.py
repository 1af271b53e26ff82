"""State machines."""

ANY = "*"
"""In place of a state: in every state that has no transition of its own for the event."""


class NoTransition(ValueError):
    """An event that nothing follows from in this state."""

    def __init__(self, state, event):
        """Say which event came in which state."""
        super().__init__(f"{event!r} is not possible in state {state!r}")
        self.state = state
        self.event = event


class Machine:
    """Goes from state to state as events come."""

    def __init__(self, state, transitions, max_history=100):
        """Begin in a state.

        transitions: (state, event) -> the next state; a state may be ANY.
        max_history: how many states are remembered.
        """
        self.state = state
        self.transitions = dict(transitions)
        self.max_history = max_history
        self.history = [state]
        self._guards = {}
        self._on_enter = {}
        self._on_leave = {}

    def guard(self, state, event, check):
        """Let an event through in a state only where check(*values) is true."""
        self._guards.setdefault((state, event), []).append(check)

    def on_enter(self, state, call):
        """Call call(old state, new state) whenever a state is entered."""
        self._on_enter.setdefault(state, []).append(call)

    def on_leave(self, state, call):
        """Call call(old state, new state) whenever a state is left; before the new one is entered."""
        self._on_leave.setdefault(state, []).append(call)

    def target(self, event):
        """Return the state that follows an event, or None; guards are not asked."""
        own = self.transitions.get((self.state, event))
        return own if own is not None else self.transitions.get((ANY, event))

    def can(self, event, *values):
        """Tell whether an event is possible now."""
        return self.target(event) is not None and self._is_let_through(event, values)

    def events(self):
        """Return all events that are possible now, sorted; guards are not asked."""
        return sorted({event for state, event in self.transitions if state in (self.state, ANY)})

    def send(self, event, *values):
        """Let an event come, and return the new state. Raises NoTransition."""
        if not self.can(event, *values):
            raise NoTransition(self.state, event)
        old, new = self.state, self.target(event)
        for call in self._on_leave.get(old, []):
            call(old, new)
        self.state = new
        self.history = [*self.history, new][-self.max_history :]
        for call in self._on_enter.get(new, []):
            call(old, new)
        return self.state

    def back(self):
        """Return to the state before, without calling anything; return it. Raises ValueError: there is none."""
        if len(self.history) < 2:
            raise ValueError("there is no state before")
        self.history = self.history[:-1]
        self.state = self.history[-1]
        return self.state

    def _is_let_through(self, event, values):
        checks = [*self._guards.get((self.state, event), []), *self._guards.get((ANY, event), [])]
        return all(check(*values) for check in checks)
