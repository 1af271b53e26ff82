"""`envgym list`: the environments; with `--kind`, the plug-ins of a kind."""

import argparse
import re
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, distribution, requires

from envgym import list_ids
from envgym.cli.common import add_json_argument, echo, print_json, styled
from envgym.registry import Registration, find


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help_kind = "list the plug-ins of a kind instead; without NAME, the kinds"
    parser.add_argument("--kind", metavar="NAME", nargs="?", const="", help=help_kind)
    parser.add_argument("contains", metavar="TEXT", nargs="?", default="", help="only those whose line holds this text")
    parser.add_argument("--usable", action="store_true", help="only those whose packages and programs are installed")
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
        entries = [entry for entry in entries if missing_part(entry) is None]
    if args.json:
        print_json([asdict(entry) | {"missing": (missing_part(entry) or (None,))[0]} for entry in entries])
        return 0
    width = max((len(entry.id) for entry in entries), default=0)
    for entry in entries:
        missing = missing_part(entry)
        parts = (entry.requires and f"envgym[{entry.requires}]", entry.wheel, entry.program)
        needs = "needs " + " and ".join(part for part in parts if part) if any(parts) else ""
        state = f"unavailable: {needs}, {missing[0]} is not installed" if missing else needs
        origin = "" if entry.origin == "envgym" else f" (from {entry.origin})"
        notes = styled(f" [{state}]" if state else "", "yellow" if missing else "dim"), styled(origin, "dim")
        name, summary = styled(f"{entry.id:<{width}}", "bold"), f"  {entry.summary}"
        echo(name, summary if state or origin else summary.rstrip(), *notes, sep="")
    return 0


def missing_part(entry: Registration) -> tuple[str, str] | None:
    """Return a requirement of an environment that is not installed, with the command that installs it."""
    package = missing_package(entry.requires, entry.wheel)
    if package is not None:
        extra = f"pip install 'envgym[{entry.requires}]'" if entry.requires else ""
        wheel = f"pip install --no-deps {entry.wheel}" if entry.wheel else ""
        return package, " && ".join(part for part in (extra, wheel) if part)
    if entry.program is not None:
        from envgym.sandbox import has_program

        if not has_program(entry.program):
            return entry.program, entry.install or f"install {entry.program}"
    return None


def missing_package(extra: str | None, wheel: str | None = None) -> str | None:
    """Return a package of an extra of envgym, or the wheel, that is not installed, if there is one that is known."""
    of_extra = re.compile(rf"([\w.-]+).*\bextra == ['\"]{extra}['\"]")
    requirements: list[str] = []
    with suppress(PackageNotFoundError):  # run from its source: nobody wrote down what it needs
        requirements = requires("envgym") or []
    needed = [match[1] for item in requirements if (match := of_extra.match(item))]
    for name in [*needed, wheel] if requirements and wheel else needed:
        try:
            distribution(name)
        except PackageNotFoundError:
            return name
    return None
