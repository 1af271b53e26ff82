"""The process that compares expressions with math-verify: started by `envgym.verifiers.math`, never imported by it.

It reads one JSON request per line and answers each in two lines: whether the key could be read, then the comparison. So
the caller knows, when the process dies in between, that it was the answer and not the key that was too much. The kernel
ends the process when a request uses more than its share of CPU time, also inside long C loops and on a loaded machine.
"""

import json
import logging
import sys

from envgym.helper_process import limit_process, limit_request, take_output

MEMORY_BYTES = 2 * 1024**3


def main() -> None:
    """Serve requests until the input ends."""
    say = take_output()
    try:
        from math_verify import LatexExtractionConfig, parse, verify

        from envgym.verifiers.operations_left import operations_left_beyond
    except ImportError as error:
        say(failed=f"math-verify cannot be imported: {error}")
        return
    logging.disable(logging.CRITICAL)
    limit_process(MEMORY_BYTES)

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
        limit_request(request["cpu_s"])
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


if __name__ == "__main__":
    main()
