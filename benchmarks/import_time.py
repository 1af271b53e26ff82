"""Wall time of `import envgym` and of `envgym --help`, each in a new process.

Run: python benchmarks/import_time.py [--repeat 5]. Prints one JSON line; the medians must stay under 0.4 s on an
idle machine. `cpu_s` is the processor time of the same runs: it tells a busy machine from a slow import.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from statistics import median

LIMIT_S = 0.4

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import_gymnasium": [sys.executable, "-c", "import gymnasium"],
    "import_envgym": [sys.executable, "-c", "import envgym"],
    "envgym_help": [sys.executable, "-m", "envgym", "--help"],
}


def measure(command: list[str]) -> tuple[float, float]:
    """Return wall and processor seconds of one run."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    result: dict[str, object] = {"benchmark": "import_time", "limit_s": LIMIT_S}
    for name, command in COMMANDS.items():
        measure(command)  # the first run writes bytecode
        runs = [measure(command) for _ in range(options.repeat)]
        result[f"{name}_s"] = round(median(wall for wall, _ in runs), 3)
        result[f"{name}_cpu_s"] = round(median(cpu for _, cpu in runs), 3)
    print(json.dumps({**result, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
