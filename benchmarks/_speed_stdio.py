"""Programs per second that `code/stdio-v0` grades: the oracle's programs in Python, each on all tests of its problem.

Run: python -m benchmarks._speed_stdio [--programs 80]. Prints one JSON line. As many are under way at a time as in
`benchmarks/sandbox.py`; resets and what the oracle writes are not timed, and every program must earn 1.
"""

from queue import SimpleQueue
from statistics import mean
from typing import Any

import envgym
from benchmarks._options import print_result, read_options
from benchmarks.sandbox import IN_FLIGHT, per_second
from envgym.env import Env


def main() -> None:
    options = read_options(__doc__, programs=80)
    left: SimpleQueue[tuple[Env[Any], str]] = SimpleQueue()  # every env has its own state type
    num_tests: list[int] = []
    for index in range(options.programs):
        env = envgym.make("code/stdio-v0")
        env.reset(options={"index": index})
        tests = env.task.payload["tests"]
        assert isinstance(tests, list)
        num_tests.append(len(tests))
        left.put((env, env.oracle()))

    def grade() -> None:
        env, program = left.get()
        assert env.step(program).reward == 1.0
        env.close()

    rate = per_second(grade, options.programs)
    tests = round(mean(num_tests), 1)
    print_result("speed_stdio", programs_per_s=rate, **vars(options), in_flight=IN_FLIGHT, tests_per_program=tests)


if __name__ == "__main__":
    main()
