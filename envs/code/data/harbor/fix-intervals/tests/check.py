"""The program must merge hidden intervals as the task asks."""

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

CASES = {
    "1 3\n4 6\n": "1 6\n",
    "5 9\n1 2\n": "1 2\n5 9\n",
    "1 10\n2 3\n5 6\n": "1 10\n",
    "-5 -3\n-2 0\n2 2\n": "-5 0\n2 2\n",
    "7 8\n1 1\n\n2 5\n": "1 5\n7 8\n",
}
sys.exit(any(as_agent("/usr/bin/python3", "intervals.py", given=text) != want for text, want in CASES.items()))
