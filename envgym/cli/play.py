"""`envgym play`: a person is the agent, or watches the oracle."""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from envgym.cli.common import add_env_arguments, at_least_0, echo, make_env, styled
from envgym.core.json_types import JsonObject
from envgym.core.turns import ZERO, Ending, Scored, total
from envgym.errors import InvalidInput, near_names
from envgym.records import StepRecord
from envgym.signatures import usage
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
        _show("how", "" if args.oracle else how_to_act(record.tools))
        _show("env", str(record.observation))
        read = env.oracle if args.oracle else _reader(lambda: _tools_now(env, record.tools))
        _play(env, read, echo=args.oracle or not sys.stdin.isatty(), has_tools=bool(record.tools))
        if not args.oracle and (left := _unread(sys.stdin)):
            echo(styled(f"{left} further {'line was' if left == 1 else 'lines were'} not read", "dim"))
    finally:
        env.close()
    return 0


def how_to_act(tools: Sequence[ToolSpec]) -> str:
    """Say in one line what may be typed."""
    leaving = "Ctrl-D leaves"
    if not tools:
        return f"a line is your move or answer; {leaving}"
    forms = [_form(tool) for tool in tools]
    bare = sorted((form for form in forms if "{" not in form), key=lambda form: " " not in form)  # with a value first
    whole = sorted((form for form in forms if "{" in form), key=len)
    calls = " or ".join([*bare[:1], *whole[:1]])
    return f"{calls} calls a tool; any other text is your final answer, or what you say; {leaving}"


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
    """Return the tools with which the episode began, and those that are offered now."""
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


def as_action(line: str, tools: Sequence[ToolSpec]) -> str:
    """Write `/TOOL ARGUMENTS` as a tool call; anything else stays as it is.

    Where there are tools, `//` stands for a slash that calls none. Raises: InvalidInput: no such tool, no such form.
    """
    if not tools or not line.startswith("/"):
        return line
    if line.startswith("//"):
        return line[1:]
    name, _, rest = line[1:].partition(" ")
    spec = next((tool for tool in tools if tool.name == name), None)
    if spec is None:
        known = [tool.name for tool in tools]
        near = near_names(name, known)
        do = f"did you mean /{' or /'.join(near)}?" if near else f"the tools are /{', /'.join(known)}."
        raise InvalidInput(f"no tool {name}; {do} Begin with // to say it as text.")
    try:
        value = json.loads(rest) if rest.strip() else {}
    except ValueError:
        value = rest.strip()
    if not isinstance(value, dict):
        names, properties = _needed(spec), _properties(spec)
        if len(names) != 1:
            must = "be given a JSON object" if names else "be given no arguments"
            raise InvalidInput.of(f"/{name}", must, rest, where="play", do=f"write {_form(spec)}")
        schema = properties[names[0]]
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        value = {names[0]: rest.strip() if is_text else value}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': value}, ensure_ascii=False)}\n</tool_call>"


def _form(tool: ToolSpec) -> str:
    """Write a tool's call as a line of `play`, with the arguments that it needs."""
    names = _needed(tool)
    values = names[0].upper() if len(names) == 1 else json.dumps(dict.fromkeys(names, "...")) if names else ""
    return f"/{tool.name} {values}".rstrip()


def _needed(tool: ToolSpec) -> list[str]:
    """Return the names of the arguments that a tool needs, or of all where it needs none."""
    required = tool.parameters.get("required")
    names = list(_properties(tool))
    return [name for name in names if isinstance(required, list) and name in required] or names


def _properties(tool: ToolSpec) -> JsonObject:
    """Return the schemas of a tool's arguments."""
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, dict) else {}
