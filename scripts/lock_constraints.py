"""Write beside each file in `constraints/` its lock: the same versions, with the SHA-256 of all files of the index.

    pip install uv && python scripts/lock_constraints.py

The index is pip's own. A file has the same hash on every index that serves it, so no index is named in a lock.
"""

import platform
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "constraints"
HEAD = "# The versions of {name}, with the hashes of all their files. Written by scripts/lock_constraints.py.\n"
UV = "pip compile - --universal --no-deps --generate-hashes --no-header --no-annotate --quiet"


def main() -> int:
    """Write all locks."""
    index = _pip("config", "get", "global.index-url") or "https://pypi.org/simple"
    python = ("--python", sys.executable, "--python-version", platform.python_version())
    for path in sorted(FOLDER.glob("*.txt")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] not in "#-"]
        command = (sys.executable, "-m", "uv", *UV.split(), *python, "--default-index", index)
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{path.name} must be locked, got {done.stderr.strip()} (uv); install uv.", file=sys.stderr)
            return 1
        path.with_suffix(".lock").write_text(HEAD.format(name=path.name) + done.stdout, encoding="utf-8")
        print(path.with_suffix(".lock").relative_to(FOLDER.parent))
    return 0


def _pip(*words: str) -> str:
    command = (sys.executable, "-m", "pip", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
