"""The process that compares expressions with math-verify: started by `envgym.verifiers.math`, never imported by it.

It reads one JSON request per line and answers each in two lines: whether the key could be read, then the comparison. So
the caller knows, when the process dies in between, that it was the answer and not the key that was too much. The kernel
ends the process when a request uses more than its share of CPU time, also inside long C loops and on a loaded machine.
"""

import json
import logging
import math
import os
import resource
import sys
import time

MEMORY_BYTES = 2 * 1024**3


def main() -> None:
    """Serve requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints is not an answer

    def say(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        from math_verify import LatexExtractionConfig, parse, verify

        from envgym.verifiers.operations_left import operations_left_beyond
    except ImportError as error:
        say(failed=f"math-verify cannot be imported: {error}")
        return
    logging.disable(logging.CRITICAL)
    limit_softly(resource.RLIMIT_CORE, 0)
    limit_softly(resource.RLIMIT_AS, MEMORY_BYTES)

    def read(text: str) -> list[object]:
        return list(
            parse(
                f"${text}$",
                extraction_config=[LatexExtractionConfig()],
                fallback_mode="no_fallback",
                parsing_timeout=None,
            )
        )

    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        limit_softly(resource.RLIMIT_CPU, math.ceil(time.process_time()) + request["cpu_s"])
        key = read(request["key"])
        say(key=bool(key))
        if not key:
            continue
        answer = read(request["answer"])
        try:
            equal, problem = bool(answer) and verify(key, answer, timeout_seconds=None, raise_on_error=True), ""
            has_trees = equal and not isinstance(answer[0], str) and not isinstance(key[0], str)
            left = operations_left_beyond(answer[0], key[0]) if has_trees else 0
        except Exception as error:  # noqa: BLE001  # sympy may raise anything on two strange expressions; the key alone was fine
            equal, problem, left = False, type(error).__name__, 0
        say(read=bool(answer), equal=equal, problem=problem, left=left)


def limit_softly(kind: int, soft: int) -> None:
    """Set a soft limit, as far as the hard one allows."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
