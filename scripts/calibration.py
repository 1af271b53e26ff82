"""How slow this machine is now, by a fixed piece of work: limits of test lanes are scaled by it.

Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import time

REFERENCE_S = 0.45
"""What the work takes on two idle cores of the machine for which the limits of the lanes are stated."""
NUM_PROCESSES = 2
"""Processes that do the work at the same time: a lane keeps about two cores busy."""
_WORK = """
import hashlib, json
total = 0
for index in range(120_000):
    row = {"index": index, "text": str(index) * 3}
    total += len(json.dumps(row)) + sum(map(ord, row["text"][:4]))
hashlib.sha256(bytes(20_000_000)).digest()
"""


def slowness() -> float:
    """Return how many times longer the work takes than on the machine of the limits; at least 1.

    Two processes do it at the same time, so that one core for two, or other load, counts as slowness. Takes half a
    second on two idle cores.
    """
    begun = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-I", "-c", _WORK]) for _ in range(NUM_PROCESSES)]
    for process in processes:
        process.wait()
    return max((time.monotonic() - begun) / REFERENCE_S, 1.0)
