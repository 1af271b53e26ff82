"""Intervals of minutes, and what can be computed with several."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Interval:
    """From `start` up to, and without, `end`."""

    start: int
    end: int

    def __post_init__(self):
        """Refuse what holds no minute."""
        if self.end <= self.start:
            raise ValueError(f"an interval must end after its start, got {self.start} to {self.end}")

    @property
    def length(self):
        """Minutes."""
        return self.end - self.start

    def overlaps(self, other):
        """Tell whether both hold a minute; intervals that touch do not."""
        return self.start < other.end and other.start < self.end

    def holds(self, other):
        """Tell whether all of another interval lies in this one."""
        return self.start <= other.start and other.end <= self.end

    def shifted(self, minutes):
        """Return the interval later by so many minutes."""
        return Interval(self.start + minutes, self.end + minutes)


def merge(intervals, gap=0):
    """Return sorted intervals that hold the same minutes; those at most `gap` apart become one."""
    merged = []
    for interval in sorted(intervals):
        if merged and interval.start <= merged[-1].end + gap:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    return merged


def subtract(whole, taken):
    """Return what is left of an interval without others, sorted."""
    left = []
    start = whole.start
    for interval in merge(taken):
        if not interval.overlaps(whole):
            continue
        if interval.start > start:
            left.append(Interval(start, interval.start))
        start = max(start, interval.end)
    if start < whole.end:
        left.append(Interval(start, whole.end))
    return left


def common(first, second):
    """Return the minutes that are in both of two collections of intervals, as sorted intervals."""
    left, right = merge(first), merge(second)
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i].start, right[j].start), min(left[i].end, right[j].end)
        if start < end:
            found.append(Interval(start, end))
        if left[i].end < right[j].end:
            i += 1
        else:
            j += 1
    return found
