"""The program must build without warnings and compute hidden expressions."""

import subprocess
import sys


def as_agent(*command: str, given: str = "") -> str:
    """Return the output of a command of the agent's user; none if it fails or takes long."""
    words = ["/usr/bin/setpriv", "--reuid=agent", "--regid=agent", "--clear-groups", "--", *command]
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, errors="replace", timeout=20, cwd="/app")
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""

CASES = {"2 3 4 * +": "14", "10 4 -": "6", "7 2 /": "3", "-3 5 +": "2", "1 2 3 4 5 + + + +": "15", "8": "8"}
BAD = ["1 0 /", "1 +", "", "1 2", "1 2 x", "2 **"]
options = as_agent("/bin/grep", "-c", "^CFLAGS.*-Wall -Wextra -Werror", "Makefile")
as_agent("/usr/bin/make", "clean")
built = as_agent("/bin/sh", "-c", "make 2>&1")
if not options.strip() == "1" or not built or "warning" in built:
    sys.exit(1)
for text, want in CASES.items():
    if as_agent("./calc", given=text) != f"{want}\n":
        sys.exit(1)
for text in [*BAD, " ".join(["1"] * 300)]:
    if as_agent("/bin/sh", "-c", "./calc; echo $?", given=text) != "error\n1\n":
        sys.exit(1)
