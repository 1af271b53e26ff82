"""The inside of a helper process of `envgym.verifiers.processes`: where its answers go, and what a request may take.

Standard library only, so that a helper imports no more than it needs.
"""

import json
import math
import os
import resource
import time
from collections.abc import Callable


def take_output() -> Callable[..., None]:
    """Return the function that writes an answer, as fields, to the standard output; from now on nothing else does."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints is not an answer

    def say(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")

    return say


def limit_softly(kind: int, soft: int | None) -> None:
    """Set a soft limit, as far as the hard one allows, or lift it (None)."""
    hard = resource.getrlimit(kind)[1]
    if soft is None:
        soft = hard
    elif hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(kind, (soft, hard))


def limit_process(memory_bytes: int) -> None:
    """Bound the memory, and write no core file."""
    limit_softly(resource.RLIMIT_CORE, 0)
    limit_softly(resource.RLIMIT_AS, memory_bytes)


def limit_request(cpu_s: int) -> None:
    """Let the kernel end the process when the request that begins now takes more seconds of processor time."""
    limit_softly(resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_s)
