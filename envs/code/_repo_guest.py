"""What runs inside the sandbox of a repository's hidden checks; sent there as text, standard library only.

It gets the source that an agent left and the inputs of the checks, never an expected output. What the source does to
this program can change nothing but its own results.
"""

import contextlib
import io
import json
import os
import sys
from typing import Any

Data = Any  # what JSON holds
DIRECTORY = "graded"
MAX_PRINTED = 20_000


def main() -> None:
    """Run the examples in the job on standard input; write what each one says."""
    job = json.load(sys.stdin)
    target = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for path, text in job["files"].items():
        place = os.path.join(DIRECTORY, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(text.encode("latin-1"))
    sys.path.append(os.path.abspath(DIRECTORY))
    results = {name: [*examples_of(sources)] for name, sources in job["checks"].items()}
    with os.fdopen(target, "w", encoding="utf-8", errors="replace") as file:
        json.dump(results, file)


def examples_of(sources: list[str]) -> list[Data]:
    """Run examples one after another in one namespace; return what each one prints and raises."""
    space: dict[str, Any] = {"__name__": "checks"}
    return [example(source, space) for source in sources]


def example(source: str, space: dict[str, Any]) -> Data:
    """Run one example; a last expression is shown as at a prompt."""
    printed, raised = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            exec(compile(source, "<check>", "single"), space)
        except BaseException as error:  # noqa: BLE001  # the source may raise anything
            raised = type(error).__name__
            with contextlib.suppress(BaseException):
                text = str(error)
                raised = f"{raised}: {text}" if text else raised
    return {"printed": printed.getvalue()[:MAX_PRINTED], "raised": raised}


if __name__ == "__main__":
    main()
