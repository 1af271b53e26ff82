"""The command line of a benchmark, and the line that it prints."""

import argparse
import json
import os
import platform


def read_options(description: str | None, **defaults: object) -> argparse.Namespace:
    """Read an option for each default: `repeats=3` is `--repeats 3`, a tuple takes several words, False is a flag."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            kind = type(default[0]) if default else str
            parser.add_argument(option, nargs="*", type=kind, default=default, help=f"default: {default}")
        else:
            parser.add_argument(option, type=type(default), default=default, help="default: %(default)s")
    return parser.parse_args()


def print_result(benchmark: str, **figures: object) -> None:
    """Print one line of JSON: the figures, and what they depend on."""
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    print(json.dumps({"benchmark": benchmark, **figures, **machine, "load": round(os.getloadavg()[0], 1)}))
