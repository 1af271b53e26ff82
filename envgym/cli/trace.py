"""`envgym trace`: what happened to a group, in all processes of a run, in one list by time."""

import argparse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from envgym.cli.common import add_json_argument, echo, print_json
from envgym.core.json_types import visible

_OWN = ("time", "run", "role", "level", "episode", "branch", "event", "logger", "message")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("run", metavar="RUN", help="directory of a training run with several processes")
    help_group = "key of a group, such as step-000003/001, or id of one of its episodes, such as step-000003/001/02"
    parser.add_argument("group", metavar="GROUP", help=help_group)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the lines of all logs about the group."""
    from envgym.runs.directory import RunDirectory
    from envgym.runtime.processes.log import read_trace

    entries = read_trace(RunDirectory.open(args.run).path, args.group)
    if args.json:
        print_json(entries)
        return 0
    start = datetime.fromisoformat(entries[0]["time"])
    width = max(len(str(entry["role"])) for entry in entries)
    echo(f"{entries[0]['time']}  run {visible(str(entries[0].get('run', '')))}")
    for entry in entries:
        seconds = (datetime.fromisoformat(entry["time"]) - start).total_seconds()
        echo(f"{seconds:>10.3f} s  {visible(str(entry['role'])):<{width}}  {_told(entry)}")
    return 0


def _told(entry: Mapping[str, Any]) -> str:
    branch = "" if entry.get("branch") is None else f" branch {entry['branch']}"
    what = entry.get("event") or f"{entry['level']} {entry.get('message', '')}"
    fields = (f"{key}={_short(value)}" for key, value in entry.items() if key not in _OWN)
    return visible("  ".join([f"{entry.get('episode', '')}{branch}", str(what), *fields]))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
