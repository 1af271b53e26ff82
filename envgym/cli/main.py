"""`envgym COMMAND ...`: finds the command's module, runs it, and turns errors made on purpose into one sentence.

A command is one row in `COMMANDS`, and a function that adds its arguments to a parser and sets what runs. Only the
module of the command that was asked for is imported.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from envgym import __version__
from envgym.cli.common import Parser, echo, import_from_here
from envgym.errors import EnvgymError, sentence, unknown_name

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table."""

    module: str
    help: str
    add_arguments: str = "add_arguments"
    """Name of the function in the module."""


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "list": Command("envgym.cli.list_envs", "list the environments, or the plug-ins of a kind"),
        "show": Command("envgym.cli.show", "show an environment: card, tools, spaces, rewards, an example episode"),
        "tasks": Command("envgym.cli.tasks", "show tasks of an environment, and whether its splits overlap"),
        "play": Command("envgym.cli.play", "play an environment yourself, or watch its oracle"),
        "check": Command("envgym.cli.check", "judge environments with the conformance suite"),
        "bench": Command("envgym.cli.bench", "measure what a reset, a turn and a fork of environments cost"),
        "new": Command("envgym.cli.new", "write a new environment package, ready to install"),
        "eval": Command("envgym.cli.evaluate", "measure success on held-out tasks"),
        "train": Command("envgym.cli.train", "train an agent as a settings file says"),
        "sft": Command(
            "envgym.cli.train",
            "make the warm start of a run by itself, as a checkpoint in RUN-sft",
            "add_sft_arguments",
        ),
        "value": Command(
            "envgym.cli.train", "fit a value to train episodes of a run's newest checkpoint", "add_value_arguments"
        ),
        "recipes": Command("envgym.cli.plugin_kinds", "list the recipes and what they choose"),
        "view": Command("envgym.cli.view", "write the report of a run, finished or not, or of one of its trees"),
        "serve-retriever": Command(
            "envgym.cli.serve_retriever", "serve a corpus over HTTP, in the protocol of Search-R1's retrieval servers"
        ),
    }
)
"""Command -> where its arguments are, in the order of the help text."""

_EPILOG = """examples:
  envgym list
  envgym list --kind credit
  envgym show math/arithmetic-v0
  envgym play puzzles/guess_number-v0 --seed 1
  envgym check --all
  envgym new my_games/dice
  envgym train examples/demo.yaml
  envgym eval --model runs/demo

Most commands take --help, --json where they report something, and --traceback for the whole story of an error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 done, 1 a check failed, 2 bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        name = _command_of(words)
        parser = build_parser(name)
        args = parser.parse_args(words)
        if name is None:
            parser.print_help()
            return 0
        import_from_here(list(vars(args).values()))
        code: int = args.run_command(args)
        sys.stdout.flush()
        return code
    except (EnvgymError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter leaves quietly
            return 0
        if "--traceback" in words:
            raise
        told = _of_the_system(error) if isinstance(error, OSError) and error.errno is not None else str(error)
        echo(f"envgym: {told}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _of_the_system(error: OSError) -> str:
    """Say in the house's form what the operating system refused."""
    what = "system" if error.filename is None else str(error.filename)
    do = "check the path, its permissions and the space left"
    return sentence(what, "be usable", error.strerror or str(error), where="operating system", do=do)


def _command_of(words: Sequence[str]) -> str | None:
    """Return the command's name, the first word that is no option. Raises: UnknownName: there is no such command."""
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS, where="envgym --help")
    return name


def build_parser(selected: str | None) -> Parser:
    """Build the parser, with the arguments of the selected command only."""
    help_traceback = "show the traceback of an error"
    parser = Parser(
        prog="envgym",
        description="Environments, agent loop and trainer for multi-turn reinforcement learning of language agents.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"envgym {__version__}")
    parser.add_argument("--traceback", action="store_true", help=help_traceback)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        own = subparsers.add_parser(name, help=command.help, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == selected:
            own.description = f"{command.help[0].upper()}{command.help[1:]}."
            getattr(import_module(command.module), command.add_arguments)(own)
            own.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=help_traceback)
    return parser
