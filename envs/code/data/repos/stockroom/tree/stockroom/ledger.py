"""Keeps count of what comes and goes."""

from collections import defaultdict
from dataclasses import dataclass


class StockProblem(ValueError):
    """A movement that cannot be."""


@dataclass(frozen=True)
class Movement:
    """A change of one part's count."""

    sku: str
    change: int
    note: str = ""


class Stock:
    """Parts and their movements."""

    def __init__(self, parts):
        """Begin with nothing in stock."""
        self.parts = {part.sku: part for part in parts}
        self.movements = []
        self._counts = defaultdict(int)
        self._reserved = defaultdict(int)

    def receive(self, sku, count, note=""):
        """Add parts."""
        self._move(sku, _positive(count), note)

    def issue(self, sku, count, note=""):
        """Take parts out. Raises StockProblem: more than are there and not reserved."""
        count = _positive(count)
        if count > self.available(sku):
            raise StockProblem(f"only {self.available(sku)} of {sku} available, not {count}")
        self._move(sku, -count, note)

    def count(self, sku):
        """Return how many parts are there, reserved ones too."""
        self._check(sku)
        return self._counts[sku]

    def available(self, sku):
        """Return how many parts are there and not reserved."""
        return self.count(sku) - self._reserved[sku]

    def reserve(self, sku, count):
        """Keep parts for later. Raises StockProblem: there are not so many."""
        count = _positive(count)
        if count > self.available(sku):
            raise StockProblem(f"only {self.available(sku)} of {sku} available, not {count}")
        self._reserved[sku] += count

    def release(self, sku, count):
        """Give reserved parts free. Raises StockProblem: more than are reserved."""
        count = _positive(count)
        self._check(sku)
        if count > self._reserved[sku]:
            raise StockProblem(f"only {self._reserved[sku]} of {sku} reserved, not {count}")
        self._reserved[sku] -= count

    def issue_all(self, order, note=""):
        """Take several parts out, all of them or none. order: sku -> count. Raises StockProblem."""
        for sku, count in order.items():
            if _positive(count) > self.available(sku):
                raise StockProblem(f"only {self.available(sku)} of {sku} available, not {count}")
        for sku, count in order.items():
            self._move(sku, -count, note)

    def short(self):
        """Return (sku, how many are missing) for each part below its minimum; the most missing first, then by sku."""
        missing = [(sku, part.minimum - self._counts[sku]) for sku, part in self.parts.items()]
        return sorted(((sku, count) for sku, count in missing if count > 0), key=lambda item: (-item[1], item[0]))

    def value(self):
        """Return the cents that all parts in stock are worth."""
        return sum(part.price * self._counts[sku] for sku, part in self.parts.items())

    def undo(self):
        """Take the last movement back, and return it. Raises StockProblem: there is none, or its parts are gone."""
        if not self.movements:
            raise StockProblem("nothing to undo")
        last = self.movements[-1]
        if last.change > self.available(last.sku):
            raise StockProblem(f"only {self.available(last.sku)} of {last.sku} available, not {last.change}")
        self._counts[last.sku] -= last.change
        return self.movements.pop()

    def _move(self, sku, change, note):
        self._check(sku)
        self._counts[sku] += change
        self.movements.append(Movement(sku, change, note))

    def _check(self, sku):
        if sku not in self.parts:
            raise StockProblem(f"unknown part {sku}")


def _positive(count):
    if count < 1:
        raise StockProblem(f"a count must be at least 1, got {count}")
    return count
