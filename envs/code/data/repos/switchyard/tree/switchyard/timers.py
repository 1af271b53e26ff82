"""Events in the future, with a clock that somebody moves."""

import heapq


class Timers:
    """Calls what is due when time goes on."""

    def __init__(self):
        """Begin at time 0."""
        self.now = 0
        self._waiting = []
        self._num_made = 0
        self._cancelled = set()

    def after(self, delay, call, every=None):
        """Call something after a delay, and then again and again where `every` is given; return its number."""
        if delay < 0 or (every is not None and every <= 0):
            raise ValueError("delays must not be negative, and repeats positive")
        self._num_made += 1
        heapq.heappush(self._waiting, (self.now + delay, self._num_made, self._num_made, call, every))
        return self._num_made

    def cancel(self, number):
        """Drop a timer; one that is over or cancelled does not matter."""
        if any(entry[2] == number for entry in self._waiting):
            self._cancelled.add(number)

    def advance(self, seconds):
        """Let time go on, and call what is due, in the order of time; return how many calls were made."""
        end = self.now + seconds
        calls = 0
        while self._waiting and self._waiting[0][0] <= end:
            due, _, number, call, every = heapq.heappop(self._waiting)
            if number in self._cancelled:
                self._cancelled.discard(number)
                continue
            self.now = due
            if every is not None:
                self._num_made += 1
                heapq.heappush(self._waiting, (due + every, self._num_made, number, call, every))
            calls += 1
            call()
        self.now = end
        return calls

    def pending(self):
        """Return the times of all calls to come, sorted."""
        return sorted(entry[0] for entry in self._waiting if entry[2] not in self._cancelled)
