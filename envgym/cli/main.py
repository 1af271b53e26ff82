"""`envgym COMMAND ...`: finds the command's module, runs it, and turns errors made on purpose into one sentence.

A command is a module with `add_parser(subparsers) -> ArgumentParser` and `run(args) -> int`, and one row in `COMMANDS`.
Only the module of the command that was asked for is imported.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType, ModuleType

from envgym import __version__
from envgym.cli.common import Parser, Subparsers
from envgym.errors import EnvgymError, sentence, unknown_name

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table."""

    module: str
    help: str


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
        "sft": Command("envgym.cli.sft", "make the warm start of a training run, by itself"),
        "value": Command("envgym.cli.value", "fit a value to the episodes of a run, to lead searches"),
        "recipes": Command("envgym.cli.recipes", "list the recipes and what they choose"),
        "view": Command("envgym.cli.view", "write the report of a run, or of one of its trees"),
        "serve-retriever": Command("envgym.cli.serve_retriever", "serve a corpus over HTTP, for search environments"),
    }
)
"""Command -> its module, in the order of the help text."""

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
        parser, module = _parser(name)
        args = parser.parse_args(words)
        if module is None:
            parser.print_help()
            return 0
        code = module.run(args)
        sys.stdout.flush()
        return int(code)
    except (EnvgymError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            _silence_stdout()
            return 0
        if "--traceback" in words:
            raise
        told = _of_the_system(error) if isinstance(error, OSError) and error.errno is not None else str(error)
        print(f"envgym: {told}", file=sys.stderr)
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


def _parser(selected: str | None) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """Build the parser, with the arguments of the selected command only."""
    parser: argparse.ArgumentParser = Parser(
        prog="envgym",
        description="Environments, agent loop and trainer for multi-turn reinforcement learning of language agents.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"envgym {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    subparsers: Subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    module = None
    for name, command in COMMANDS.items():
        if name != selected:
            subparsers.add_parser(name, help=command.help)
            continue
        module = import_module(command.module)
        own: argparse.ArgumentParser = module.add_parser(subparsers)
        own.add_argument(
            "--traceback", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
    return parser, module


def _silence_stdout() -> None:
    """Let the interpreter leave quietly when the reader of a pipe has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
