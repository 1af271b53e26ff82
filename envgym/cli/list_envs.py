"""`envgym list`: the environments; with `--kind`, the plug-ins of a kind."""

import argparse
import re
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, distribution, requires

from envgym import list_ids
from envgym.cli.common import add_json_argument, echo, print_json, styled
from envgym.registry import find


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help_kind = "list the plug-ins of a kind instead; without NAME, the kinds"
    parser.add_argument("--kind", metavar="NAME", nargs="?", const="", help=help_kind)
    parser.add_argument("contains", metavar="TEXT", nargs="?", default="", help="only those whose line holds this text")
    parser.add_argument("--usable", action="store_true", help="only those whose packages are installed")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print every registered id, importing no environment; or plug-ins."""
    if args.kind is not None:
        from envgym.cli.plugin_kinds import list_kinds, list_plugins

        if args.kind:
            list_plugins(args.kind, as_json=args.json)
        else:
            list_kinds(as_json=args.json)
        return 0
    entries = [find(env_id) for env_id in list_ids()]
    entries = [entry for entry in entries if args.contains.lower() in f"{entry.id} {entry.summary}".lower()]
    if args.usable:
        entries = [entry for entry in entries if missing_package(entry.requires) is None]
    if args.json:
        print_json([asdict(entry) | {"missing": missing_package(entry.requires)} for entry in entries])
        return 0
    width = max((len(entry.id) for entry in entries), default=0)
    for entry in entries:
        missing = missing_package(entry.requires)
        needs = f"needs envgym[{entry.requires}]" if entry.requires else ""
        state = f"unavailable: {needs}, {missing} is not installed" if missing else needs
        origin = "" if entry.origin == "envgym" else f" (from {entry.origin})"
        notes = styled(f" [{state}]" if state else "", "yellow" if missing else "dim"), styled(origin, "dim")
        name, summary = styled(f"{entry.id:<{width}}", "bold"), f"  {entry.summary}"
        echo(name, summary if state or origin else summary.rstrip(), *notes, sep="")
    return 0


def missing_package(extra: str | None) -> str | None:
    """Return a package of an extra of envgym that is not installed, if there is one that is known."""
    of_extra = re.compile(rf"([\w.-]+).*\bextra == ['\"]{extra}['\"]")
    asked: list[str] = []
    with suppress(PackageNotFoundError):  # run from its source: nobody wrote down what it needs
        asked = requires("envgym") or []
    for name in [found[1] for item in asked if (found := of_extra.match(item))]:
        try:
            distribution(name)
        except PackageNotFoundError:
            return name
    return None
