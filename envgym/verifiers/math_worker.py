"""The process that compares expressions with math-verify: started by `envgym.verifiers.math`, never imported by it.

It reads one JSON request per line and answers each in two lines: whether the key could be read, then the comparison. So
the caller knows, when the process dies in between, that it was the answer and not the key that was too much. The kernel
ends the process when a request uses more than its share of CPU time, also inside long C loops and on a loaded machine.
"""

import json
import logging
import sys
from typing import Any

from envgym.runtime.processes.helper import limit_process, limit_request, take_output

MEMORY_BYTES = 2 * 1024**3


def main() -> None:
    """Serve requests until the input ends."""
    say = take_output()
    try:
        import sympy as sp
        from math_verify import LatexExtractionConfig, parse

        from envgym.verifiers.math_equality import are_equal, is_said_again
        from envgym.verifiers.operations_left import operations_left_beyond
    except ImportError as error:
        say(failed=f"math-verify cannot be imported: {error}")
        return
    logging.disable(logging.CRITICAL)
    limit_process(MEMORY_BYTES)

    def read(text: str) -> list[Any]:  # sympy has no types
        return list(
            parse(
                f"${text}$",
                extraction_config=[LatexExtractionConfig()],
                fallback_mode="no_fallback",
                parsing_timeout=None,
            )
        )

    are_equal(read("x^2 + \\frac{1}{2}"), read("\\sqrt{x}"))  # what is loaded on first use is in no request's time
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        limit_request(request["cpu_s"])
        try:
            key = read(request["key"])
        except Exception:  # noqa: BLE001  # a key on which the parser fails cannot be read
            key = []
        if key and isinstance(key[0], sp.Basic) and key[0].has(sp.zoo, sp.nan):
            key = []  # everything undefined would equal it
        say(key=bool(key))
        if not key:
            continue
        equal, problem, left, said_again = False, "", 0, False
        answer: list[Any] = []  # what math-verify reads
        try:
            answer = key if request["answer"] == request["key"] else read(request["answer"])
            equal = answer is key or are_equal(key, answer)
            if equal and request["worked_out"] and not isinstance(answer[0], str) and not isinstance(key[0], str):
                left = operations_left_beyond(answer[0], key[0])
                said_again = left == 0 and is_said_again(answer, key, [read(text) for text in request["question"]])
        except Exception as error:  # noqa: BLE001  # sympy may raise anything on two strange expressions; the key alone was fine
            equal, problem = False, type(error).__name__
        say(read=bool(answer), equal=equal, problem=problem, left=left, said_again=said_again)


if __name__ == "__main__":
    main()
