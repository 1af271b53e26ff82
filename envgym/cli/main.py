"""`envgym COMMAND ...`: finds the command's module, runs it, and turns errors made on purpose into one sentence.

A command is one table of `commands.toml`, and two functions: one adds its arguments to a parser, one runs it. Only the
module of the command that was asked for is imported.
"""

import argparse
import errno
import os
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

from envgym import __version__
from envgym.cli.common import Parser, echo, import_from_here, json_alone, process_start
from envgym.errors import EnvgymError, sentence, unknown_name
from envgym.runtime.processes.group import end_with_parent
from envgym.runtime.processes.interrupts import describe_interrupt_by, end_interrupted, handle_signals, tell_interrupt
from envgym.runtime.processes.log import open_log_of_environment

EXIT_BAD_INPUT = 2


_TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
COMMANDS: Mapping[str, Mapping[str, str]] = _TABLE["commands"]
"""Name -> its keys, in the order of the help text."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 done, 1 a check failed, 2 bad input, 130 interrupted.

    Args:
        argv: the words after `envgym`; None: this process is the program, and signals are handled as its own.
    """
    if argv is None:
        handle_signals()
        end_with_parent()
        open_log_of_environment()
    describe_interrupt_by()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        name = _command_of(words)
        parser = build_parser(*filter(None, [name]))
        args = parser.parse_args(words)
        if name is None:
            parser.print_help()
            return 0
        args.started = time.perf_counter() if argv is not None else process_start()
        import_from_here(list(vars(args).values()))
        with json_alone(of_process=argv is None) if getattr(args, "json", False) else nullcontext():
            code: int = args.run_command(args)
        sys.stdout.flush()
        return code
    except (EnvgymError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter leaves quietly
            return 0
        if "--traceback" in words:
            raise
        text = _of_the_system(error) if isinstance(error, OSError) and error.errno is not None else str(error)
        echo(f"envgym: {text}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        if argv is None:
            end_interrupted()
        return tell_interrupt()


def command_reference() -> str:
    """Return a section for each command with its help text, as the page of commands has them."""
    commands = build_parser(*COMMANDS).commands
    return "\n\n".join(f"## {name}\n\n```text\n{parser.format_help()}```" for name, parser in commands.items())


def _of_the_system(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        do = "free some space, then run the command again; a run goes on with --resume"
        return sentence(
            "disk", "have space left", error.strerror, where=str(error.filename or "operating system"), do=do
        )
    what = "system" if error.filename is None else str(error.filename)
    do = "check the path, its permissions and the space left"
    return sentence(what, "be usable", error.strerror or str(error), where="operating system", do=do)


def _command_of(words: Sequence[str]) -> str | None:
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS, where="envgym --help")
    return name


def build_parser(*selected: str) -> Parser:
    """Build the parser, with the arguments of the selected commands only."""
    help_traceback = "show the traceback of an error"
    parser = Parser(
        prog="envgym",
        description="Environments, agent loop and trainer for multi-turn reinforcement learning of language agents.",
        epilog=_TABLE["epilog"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"envgym {__version__}")
    parser.add_argument("--traceback", action="store_true", help=help_traceback)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    parser.commands = subparsers.choices
    for name, command in COMMANDS.items():
        own = subparsers.add_parser(name, help=command["help"], formatter_class=argparse.RawDescriptionHelpFormatter)
        if name in selected:
            own.description = f"{command['help'][0].upper()}{command['help'][1:]}."
            own.epilog = f"examples:\n{command['examples']}"
            module = import_module(command["module"])
            own.set_defaults(run_command=getattr(module, command.get("run", "run")))
            getattr(module, command.get("add_arguments", "add_arguments"))(own)
            own.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=help_traceback)
    return parser
