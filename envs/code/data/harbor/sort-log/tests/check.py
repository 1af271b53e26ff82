"""The findings must be those of the log."""

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

WANT = "address: 10.0.1.3\nday: 2024-05-05\npath: /search\n"
sys.exit(as_agent("/bin/cat", "findings.txt") != WANT)
