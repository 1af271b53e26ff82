"""Runs in a container, as root and alone: applies the test patch, runs the tests, and writes the reward.

Nothing here imports code of the repository. A test that does not report, because its process ended early, has failed.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
REWARD = "/logs/verifier/reward.json"
HOOKS = {
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
}
"""Names of files that run code in a test runner or in every Python, or that configure it."""


def main() -> None:
    plan = json.loads((TESTS / "plan.json").read_text(encoding="utf-8"))
    root = Path(plan["workdir"])
    changed = patched_files((TESTS / "test.patch").read_text(encoding="utf-8"))
    hooks = {str(path.relative_to(root)) for path in root.rglob("*") if path.name in HOOKS and ".git" not in path.parts}
    tracked = set(git(root, "ls-files", "-z").split("\0"))
    for name in sorted(changed | (hooks - set(plan["patched"]))):
        restore(root, name, name in tracked)
    for name in tracked - set(plan["patched"]):
        if Path(name).name in HOOKS and not (root / name).is_file():
            restore(root, name, True)
    git(root, "apply", str(TESTS / "test.patch"))
    names = plan["fail_to_pass"] + plan["pass_to_pass"]
    passed = run(plan, root, names)
    shares = {key: share(plan[key], passed) for key in ("fail_to_pass", "pass_to_pass")}
    reward = float(all(value == 1.0 for value in shares.values()))
    with open(REWARD, "w", encoding="utf-8") as file:
        json.dump({"reward": reward, **shares}, file)


def patched_files(patch: str) -> set[str]:
    """Return the paths that a patch changes, makes or removes."""
    lines = (line for line in patch.splitlines() if line.startswith(("--- ", "+++ ")))
    paths = {line[4:].split("\t")[0].strip() for line in lines}
    return {path[2:] for path in paths if path.startswith(("a/", "b/"))}


def restore(root: Path, name: str, is_tracked: bool) -> None:
    """Bring a file to its state at the base commit; links, and what else is in the way, are removed."""
    path = root / name
    for part in reversed([path, *path.parents]):
        if root in part.parents and (part.is_symlink() or not part.is_dir()):
            part.unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    if is_tracked:
        git(root, "checkout", "-q", "HEAD", "--", name)


def git(root: Path, *arguments: str) -> str:
    """Run git with the repository's own settings of the base commit alone."""
    options = ("safe.directory=*", "core.hooksPath=/dev/null", "core.fsmonitor=false")
    command = ["git", *(word for option in options for word in ("-c", option)), *arguments]
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout


def run(plan: dict[str, Any], root: Path, names: list[str]) -> set[str]:  # JSON of ours
    """Return the names of the tests that passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [plan["python"], str(TESTS / "run.py"), plan["runner"], str(report), *names]
        subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, check=False)
        try:
            outcomes = json.loads(report.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return set()
    return {name for name in names if outcomes.get(name) == "passed"}


def share(names: list[str], passed: set[str]) -> float:
    return sum(name in passed for name in names) / len(names) if names else 1.0


if __name__ == "__main__":
    main()
