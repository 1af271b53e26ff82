"""The process in which Z3 runs: started by `envgym.envs.math.solver`, never imported by it.

It reads one JSON request per line with an SMT-LIB text, which was written from formulas that were read, and answers
whether it is unsatisfiable within so many of Z3's resource units, which do not depend on time or machine.
"""

import json
import sys

from envgym.runtime.processes.helper import limit_process, limit_request, take_output

MEMORY_BYTES = 2 * 1024**3


def main() -> None:
    """Serve requests until the input ends."""
    say = take_output()
    try:
        import z3
    except ImportError as error:
        say(failed=f"z3 cannot be imported: {error}")
        return
    limit_process(MEMORY_BYTES)
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        limit_request(request["cpu_s"])
        solver = z3.SimpleSolver(ctx=z3.Context())  # a new context: no answer depends on an earlier one
        solver.set("rlimit", request["limit"])
        solver.from_string(request["smt"])
        result = str(solver.check())
        values = {}
        if result == "sat":
            model = solver.model()
            names = {item.name(): item for item in model.decls() if item.arity() == 0}
            values = {name: str(model[names[name]]) for name in request["shown"] if name in names}
        say(result=result, values=values)


if __name__ == "__main__":
    main()
