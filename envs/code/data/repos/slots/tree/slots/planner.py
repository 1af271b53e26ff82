"""Chooses among requests."""

import heapq

from slots.intervals import common


def plan(requests, people, length):
    """Return the earliest interval of `length` minutes in which all people are free, or None.

    requests: intervals that are possible; people: for each, the intervals in which that person is free.
    """
    possible = list(requests)
    for free in people:
        possible = common(possible, free)
    for interval in sorted(possible):
        if interval.length >= length:
            return type(interval)(interval.start, interval.start + length)
    return None


def rooms_needed(intervals):
    """Return how many rooms meetings need; one may begin in a room in the minute in which another ends."""
    ends = []
    most = 0
    for interval in sorted(intervals):
        while ends and ends[0] <= interval.start:
            heapq.heappop(ends)
        heapq.heappush(ends, interval.end)
        most = max(most, len(ends))
    return most
