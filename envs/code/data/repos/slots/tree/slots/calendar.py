"""What is booked, and what is free."""

from bisect import insort

from slots.intervals import merge, subtract


class Conflict(ValueError):
    """Something else is booked at that time."""

    def __init__(self, name, others):
        """Say what is in the way of a booking."""
        super().__init__(f"{name} overlaps {', '.join(others)}")
        self.others = others


class Calendar:
    """Bookings with a name, which do not overlap."""

    def __init__(self, pause=0):
        """Begin with nothing; `pause` minutes must lie between two bookings."""
        self.pause = pause
        self._bookings = []

    def __iter__(self):
        """Yield (interval, name), the earliest first."""
        return iter(self._bookings)

    def __len__(self):
        """Return the number of bookings."""
        return len(self._bookings)

    def book(self, name, interval):
        """Book an interval. Raises Conflict."""
        others = self.conflicts(interval)
        if others:
            raise Conflict(name, others)
        insort(self._bookings, (interval, name))

    def conflicts(self, interval):
        """Return the names of bookings that overlap an interval, or come nearer than the pause."""
        return [
            name
            for taken, name in self._bookings
            if taken.start < interval.end + self.pause and interval.start < taken.end + self.pause
        ]

    def cancel(self, name):
        """Drop all bookings of a name; return how many there were."""
        kept = [(interval, other) for interval, other in self._bookings if other != name]
        dropped = len(self._bookings) - len(kept)
        self._bookings = kept
        return dropped

    def move(self, name, minutes):
        """Move all bookings of a name; nothing is moved where one of them would overlap another. Raises Conflict."""
        before = list(self._bookings)
        moved = [interval.shifted(minutes) for interval, other in before if other == name]
        self.cancel(name)
        try:
            for interval in moved:
                self.book(name, interval)
        except Conflict:
            self._bookings = before
            raise

    def free(self, within, at_least=1):
        """Return the free intervals of an interval that are long enough, sorted."""
        taken = merge(interval for interval, _ in self._bookings)
        return [interval for interval in subtract(within, taken) if interval.length >= at_least]

    def busy(self, within):
        """Return how many minutes of an interval are booked."""
        return within.length - sum(interval.length for interval in self.free(within))
