"""What several commands share: their arguments, and how they write text, JSON and colour."""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from envgym.core.json_types import visible, well_formed
from envgym.errors import InvalidInput, near_names
from envgym.run_trust import names_code

if TYPE_CHECKING:
    from envgym.env import Env

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


_COMPLAINTS = tuple(
    (re.compile(rule, re.DOTALL), form)
    for rule, form in (
        (r"the following arguments are required: (.*), ([^,]*)", "{} and {} are missing"),
        (r"the following arguments are required: (.*)", "{} is missing"),
        (r"argument (\S+): invalid int value: (.*)", "{} must be a whole number, got {}"),
        (r"argument (\S+): invalid float value: (.*)", "{} must be a number, got {}"),
        (r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", "{0} must be one of {2}, got {1}"),
        (r"argument (\S+): expected one argument", "{} must be given a value, got none"),
        (r"argument (\S+): not allowed with argument (.*)", "{} must stand alone, got {} too"),
        (r"argument (\S+): (.*)", "{} {}"),
    )
)
"""What argparse complains of -> the same as what, rule and value."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence, as every other refusal."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line. Raises: InvalidInput."""
        told = next((form.format(*m.groups()) for rule, form in _COMPLAINTS if (m := rule.fullmatch(message))), message)
        raise InvalidInput(f"{told} ({self.prog}); run `{self.prog} --help` for the list of arguments.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # Any: argparse's own overloads
        """Refuse what is not known here, where the command's own options can be offered. Raises: InvalidInput."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            near = near_names(unknown[0].partition("=")[0], known) if unknown[0].startswith("-") else []
            do = f"did you mean {' or '.join(near)}?" if near else f"run `{self.prog} --help` for the list of arguments"
            raise InvalidInput.of("argument", "be a known one", " ".join(unknown), where=self.prog, do=do)
        return found, unknown


def at_least_0(text: str) -> int:
    """Read a whole number. Raises: ArgumentTypeError: it is none, or negative."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text}")
    return int(text)


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ENV and `--set`."""
    parser.add_argument(
        "env", metavar="ENV", help="id, such as math/arithmetic-v0, or import path, such as package.module:Class"
    )
    add_set_argument(parser)


def add_set_argument(
    parser: argparse.ArgumentParser, text: str = "keyword argument of the environment, such as level=3"
) -> None:
    """Add `--set KEY=VALUE`: what `text` says."""
    help_set = f"{text}; repeatable"
    parser.add_argument("--set", dest="settings", metavar="KEY=VALUE", action="append", default=[], help=help_set)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="write JSON")


def import_from_here(settings: object) -> None:
    """Let import paths lead to the folder one works in; where no setting has one, no module there is ever imported."""
    if names_code(settings):
        sys.path.insert(0, os.getcwd())


def process_start() -> float:
    """Return what `time.perf_counter()` was when this process began; now, where the system does not tell."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
        ticks = int(after_name.split()[19])  # field 22 of proc(5): ticks from the system's start
    except OSError:
        return time.perf_counter()
    return time.perf_counter() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def add_trust_argument(parser: "argparse._ActionsContainer") -> None:
    """Add `--trust`."""
    text = "allow a run from elsewhere to use the code, URLs and files that its settings name"
    parser.add_argument("--trust", action="store_true", help=text)


def env_kwargs(settings: list[str]) -> dict[str, Any]:  # the env's own keyword arguments
    """Read `--set KEY=VALUE` arguments. Raises: SettingsError: one of them is malformed."""
    if not settings:
        return {}
    from envgym.settings import apply_overrides

    return apply_overrides({}, settings)


def make_env(args: argparse.Namespace) -> "Env[Any]":  # every env has its own state type
    """Make the env that the arguments name."""
    import envgym

    return envgym.make(args.env, **env_kwargs(args.settings))


def print_json(value: object) -> None:
    """Write a JSON value for another program."""
    echo(well_formed(json.dumps(value, ensure_ascii=False, indent=2)))


class Styled(str):
    """Text that a terminal may obey: it is visible but for the colours that `styled` has put around it."""

    __slots__ = ()


def styled(text: str, *styles: str) -> Styled:
    """Colour `text` where standard output is a terminal and NO_COLOR is not set; all else in it is made visible."""
    shown = visible(text)
    if not text or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return Styled(shown)
    return Styled(f"\033[{';'.join(_STYLES[style] for style in styles)}m{shown}\033[0m")


def echo(*parts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Write as `print` does, with every part that is not `Styled` made visible: models, tools and pages wrote some."""
    texts = (part if isinstance(part, Styled) else visible(str(part)) for part in parts)
    print(*texts, sep=sep, end=end, file=file, flush=flush)
