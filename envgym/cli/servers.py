"""`envgym servers`: the servers that a run uses, some of which join or leave while it runs."""

import argparse
from pathlib import Path

from envgym.cli.common import add_json_argument, echo, print_json
from envgym.core.json_types import visible
from envgym.runs.files import SERVERS
from envgym.runtime.membership import ServerKind, change_servers, read_servers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("run", metavar="RUN", help="directory of a training run that is running")
    help_kind = "whose list is changed: policy servers, or environment servers"
    parser.add_argument("kind", nargs="?", choices=list(map(str, ServerKind)), help=help_kind)
    help_add = "let a server join; may be repeated"
    parser.add_argument("--add", action="append", default=[], metavar="URL", help=help_add)
    help_remove = "let a server leave when it has finished what it was asked; may be repeated"
    parser.add_argument("--remove", action="append", default=[], metavar="URL", help=help_remove)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Change the list, and print it."""
    from envgym.errors import InvalidInput

    file = Path(args.run) / SERVERS
    if args.add or args.remove:
        do = "name it after the run"
        InvalidInput.unless(args.kind, "kind", "be policy or env", "none", where="envgym servers", do=do)
        servers = change_servers(file, ServerKind(args.kind), add=args.add, remove=args.remove)
    else:
        servers = read_servers(file)
    urls_by_kind = {kind: urls for kind, urls in servers.items() if args.kind in (None, kind)}
    if args.json:
        print_json({str(kind): list(urls) for kind, urls in urls_by_kind.items()})
        return 0
    for kind, urls in urls_by_kind.items():
        for url in urls:
            echo(f"{kind}  {visible(url)}")
    return 0
