"""The branch must end with the original commits, and the tree must be clean."""

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

GIT = ("/usr/bin/git", "-C", "/app/notes", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
LOG = """Add the budget
Add the plan
Begin
"""
WANT = [
    (("log", "--format=%s", "main"), LOG),
    (("rev-parse", "main^{tree}"), as_agent(*GIT, "rev-parse", "HEAD^{tree}")),
    (("rev-parse", "main"), "7ae90f2460085253ae95588189097f15e0f5b007\n"),
    (("status", "--porcelain"), ""),
    (("branch", "--show-current"), "main\n"),
]
if not as_agent(*GIT, "rev-parse", "main"):
    sys.exit(1)
files = as_agent("/bin/cat", "notes/readme.txt", "notes/plan.txt", "notes/budget.txt")
is_right = all(as_agent(*GIT, *command) == want for command, want in WANT)
sys.exit(not is_right or files != "Notes of the garden club.\nPlant beans in May.\nSeeds: 12\n")
