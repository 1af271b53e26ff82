"""The process in which `envgym.verifiers` matches regular expressions: one JSON request per line, one line in answer.

The kernel ends it when a request uses more than its share of CPU time: Python's `re` cannot be stopped from inside.
"""

import json
import re
import resource
import sys

from envgym.runtime.processes.helper import limit_request, limit_softly
from envgym.verifiers.json_schema import find_problem


def main() -> None:
    """Serve requests until the input ends: `{"pattern", "answer"}` or `{"schema", "value"}`, each with `cpu_s`."""
    limit_softly(resource.RLIMIT_CORE, 0)
    find_problem({}, None)  # what it imports is no request's share
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        limit_request(request["cpu_s"])
        if "schema" in request:
            answer: dict[str, object] = {"problem": find_problem(request["schema"], request["value"])}
        else:
            answer = {"is_match": re.fullmatch(request["pattern"], request["answer"], re.DOTALL) is not None}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
