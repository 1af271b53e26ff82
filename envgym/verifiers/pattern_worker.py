"""The process that matches patterns for `envgym.verifiers.pattern`: one JSON request per line, one line in answer.

The kernel ends it when a request uses more than its share of CPU time: Python's `re` cannot be stopped from inside.
"""

import json
import math
import re
import resource
import sys
import time

from envgym.verifiers.math_worker import limit_softly


def main() -> None:
    """Serve requests until the input ends."""
    limit_softly(resource.RLIMIT_CORE, 0)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        limit_softly(resource.RLIMIT_CPU, math.ceil(time.process_time()) + request["cpu_s"])
        is_match = re.fullmatch(request["pattern"], request["answer"], re.DOTALL) is not None
        print(json.dumps({"is_match": is_match}), flush=True)


if __name__ == "__main__":
    main()
