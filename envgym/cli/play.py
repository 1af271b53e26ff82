"""`envgym play`: a person is the agent, or watches the oracle."""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from envgym.authoring.typed_actions import as_action, how_to_act
from envgym.cli.common import add_env_arguments, at_least_0, echo, make_env, styled
from envgym.core.signatures import usage
from envgym.core.turns import ZERO, Ending, Scored, total
from envgym.errors import InvalidInput
from envgym.records import StepRecord
from envgym.tools import ToolSpec
from envgym.wrappers import AnyEnv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_env_arguments(parser)
    parser.add_argument("--seed", type=at_least_0, default=0, help="seed of the episode (default: 0)")
    parser.add_argument("--split", default="train", help="train or test (default: train)")
    parser.add_argument("--index", type=int, help="number of the task (default: drawn with the seed)")
    parser.add_argument("--oracle", action="store_true", help="let the oracle play")


def run(args: argparse.Namespace) -> int:
    """Play one episode."""
    env = make_env(args)
    options = {"split": args.split} if args.index is None else {"split": args.split, "index": args.index}
    try:
        record = env.reset(seed=args.seed, options=options).info["envgym"]
        _show("system", record.system_prompt)
        for tool in record.tools:
            _show("tool", f"/{usage(tool.name, tool.parameters)}: {tool.description}")
        _show("how", "" if args.oracle else how_to_act(record.tools, "Ctrl-D leaves"))
        _show("env", str(record.observation))
        read = env.oracle if args.oracle else _reader(lambda: _tools_now(env, record.tools))
        _play(env, read, echo=args.oracle or not sys.stdin.isatty(), has_tools=bool(record.tools))
        if not args.oracle and (left := _unread(sys.stdin)):
            echo(styled(f"{left} further {'line was' if left == 1 else 'lines were'} not read", "dim"))
    finally:
        env.close()
    return 0


def _play(env: AnyEnv, read: Callable[[], str | None], *, echo: bool, has_tools: bool) -> None:
    paid = ZERO
    is_talk = False  # what is said without a call is answered, and does not end the episode
    while True:
        try:
            action = read()
        except KeyboardInterrupt:
            _show_leaving(paid.value)
            raise
        if action is None:
            _show_leaving(paid.value)
            return
        if echo:
            _show("agent", action)
        record: StepRecord = env.step(action).info["envgym"]
        if isinstance(record.reward, Scored):
            so_far = total((paid, record.reward))
            assert isinstance(so_far, Scored), "both count"
            paid = so_far
        _show("env", str(record.observation))
        if record.ending is not None:
            _show_ending(record, paid, has_answered=has_tools and not is_talk)
            return
        is_talk = is_talk or not record.action.tool_calls


def _show(who: str, text: str) -> None:
    if text:
        echo(styled(who, "cyan"), f": {text}", sep="")


def _show_leaving(reward: float) -> None:
    echo(styled(f"\nleft; reward so far {reward:g}", "dim"))


def _show_ending(record: StepRecord, paid: Scored, *, has_answered: bool) -> None:
    reason = f" ({record.error})" if record.error else ""
    turns = "1 turn" if record.turn == 0 else f"{record.turn + 1} turns"
    parts = paid.components if isinstance(record.reward, Scored) else {}
    verdict = f" ({', '.join(f'{name} {part:g}' for name, part in parts.items())})" if parts else ""
    echo(styled(f"{record.ending}{reason} after {turns}, reward {paid.value:g}{verdict}", "bold"))
    if record.ending is Ending.TRUNCATED_TURNS:
        _show("why", "the environment's limit on turns was reached")
    elif record.ending is Ending.TERMINATED and has_answered and not record.action.tool_calls:
        _show("why", "the last message calls no tool: it was taken as the final answer")


def _unread(stream: TextIO) -> int:
    """Count the lines that are there and were not asked for; one who is still writing is not waited for."""
    if stream.isatty():
        return 0
    with suppress(io.UnsupportedOperation):  # not a file of the system
        os.set_blocking(stream.fileno(), False)
    count = 0
    with suppress(TypeError, BlockingIOError):  # what versions of Python make of "nothing yet"
        for line in stream:
            count += bool(line.strip())
    with suppress(io.UnsupportedOperation):
        os.set_blocking(stream.fileno(), True)
    return count


def _tools_now(env: AnyEnv, first: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
    now = (tool.spec for tool in env.unwrapped.toolset().values())
    return list({spec.name: spec for spec in (*first, *now)}.values())


def _reader(tools: Callable[[], Sequence[ToolSpec]]) -> Callable[[], str | None]:
    """Return a function that reads the next action, or None at the end; `tools` are asked for each time."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is no text is played as a wrong character

    def read() -> str | None:
        lines: list[str] = []
        while True:
            text = _line("> " if not lines else ". ")
            if text is None:
                if not lines:
                    return None
                text = ""
            elif not text.strip() and not lines:
                echo("an empty line is not played; type an action, or leave with Ctrl-D", file=sys.stderr)
                continue
            lines.append(text.removesuffix("\\"))
            if text.endswith("\\"):
                continue
            try:
                return as_action("\n".join(lines), tools())
            except InvalidInput as error:
                echo(error, file=sys.stderr)
                lines = []

    return read


def _line(prompt: str) -> str | None:
    """Read a line without its end, or None at the end; in a terminal it can be edited, and earlier ones come back."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None
    with suppress(ImportError):
        import readline  # noqa: F401  # input() edits with it
    with suppress(EOFError):
        return input(prompt)
    return None
