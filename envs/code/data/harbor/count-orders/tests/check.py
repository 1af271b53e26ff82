"""The totals must be those of the orders."""

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

WANT = """Turku 17 2195
Bergen 19 1586
Graz 13 1275
Porto 7 1010
Lyon 8 687
"""
sys.exit(as_agent("/bin/cat", "totals.txt") != WANT)
