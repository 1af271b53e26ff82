"""Carries events to whoever listens."""


def matches(pattern, name):
    """Tell whether a name fits: "*" stands for one part between dots, "**" at the end for one part or more."""
    wanted, parts = pattern.split("."), name.split(".")
    if wanted[-1] == "**":
        wanted = wanted[:-1]
        if len(parts) <= len(wanted):
            return False
        parts = parts[: len(wanted)]
    return len(wanted) == len(parts) and all(a in ("*", b) for a, b in zip(wanted, parts, strict=True))


class Bus:
    """Knows who listens to what."""

    def __init__(self):
        """Begin with no listeners."""
        self._listeners = []
        self._num_made = 0
        self.failures = []
        """(listener, error) for each listener that raised one."""

    def listen(self, pattern, call, priority=0, once=False):
        """Call call(name, *values) for each event that fits; higher priorities first, then the older listener.

        Returns a function that ends it, and may be called twice.
        """
        self._num_made += 1
        entry = (-priority, self._num_made, pattern, call, once)
        self._listeners.append(entry)
        self._listeners.sort(key=lambda entry: entry[:2])

        def stop():
            if entry in self._listeners:
                self._listeners.remove(entry)

        return stop

    def publish(self, name, *values):
        """Call all who listen; return how many. One that raises an error does not keep it from the others."""
        called = 0
        for entry in list(self._listeners):
            _, _, pattern, call, once = entry
            if entry not in self._listeners or not matches(pattern, name):
                continue
            if once:
                self._listeners.remove(entry)
            called += 1
            try:
                call(name, *values)
            except Exception as error:
                self.failures.append((call, error))
        return called

    def num_listeners(self, name):
        """Return how many would be called for an event."""
        return sum(matches(entry[2], name) for entry in self._listeners)
