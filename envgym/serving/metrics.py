"""Counters and a histogram in Prometheus' text format."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Upper bounds of the buckets of a call's seconds."""


class ServerMetrics:
    """What a server has done since it began."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By path and status."""
        self.opened = self.forked = self.busy = 0
        self.ended: Counter[str] = Counter()
        """Sessions that ended, by why."""
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def time_call(self, seconds: float) -> None:
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        lines: list[str] = []
        for name, value in gauges.items():
            lines += [f"# TYPE envgym_{name} gauge", f"envgym_{name} {value:g}"]
        lines.append("# TYPE envgym_requests_total counter")
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'envgym_requests_total{{path="{path}",status="{status}"}} {count}')
        for name, count in (("opened", self.opened), ("forked", self.forked), ("refused", self.busy)):
            lines += [f"# TYPE envgym_sessions_{name}_total counter", f"envgym_sessions_{name}_total {count}"]
        lines.append("# TYPE envgym_sessions_ended_total counter")
        lines += [f'envgym_sessions_ended_total{{reason="{why}"}} {count}' for why, count in sorted(self.ended.items())]
        lines.append("# TYPE envgym_call_seconds histogram")
        total = 0
        for bound, count in zip((*SECONDS, "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'envgym_call_seconds_bucket{{le="{bound}"}} {total}')
        lines += [f"envgym_call_seconds_sum {self._seconds:.6f}", f"envgym_call_seconds_count {total}"]
        return "\n".join(lines) + "\n"
