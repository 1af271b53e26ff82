"""`envgym play`: a person is the agent, or watches the oracle."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from envgym.cli.common import Subparsers, add_command, add_env_arguments, at_least_0, make_env, styled
from envgym.core.rewards import Scored
from envgym.errors import InvalidInput, sentence
from envgym.records import StepRecord
from envgym.signatures import usage
from envgym.tools import ToolSpec
from envgym.wrappers import AnyEnv

_EXAMPLES = """  envgym play puzzles/guess_number-v0
  envgym play math/arithmetic-v0 --seed 3 --split test
  envgym play math/arithmetic-v0 --oracle
  printf '50\\n25\\n' | envgym play puzzles/guess_number-v0

A line is an action; end it with a backslash to go on in the next line. `/TOOL ARGUMENTS` calls a tool, with a JSON
object or, for a tool of one argument, the bare value. Any other form that agents use is read too. End with Ctrl-D."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    summary = "play an environment yourself, or watch its oracle"
    parser = add_command(subparsers, "play", summary=summary, examples=_EXAMPLES)
    add_env_arguments(parser)
    parser.add_argument("--seed", type=at_least_0, default=0, help="seed of the episode (default: 0)")
    parser.add_argument("--split", default="train", help="train or test (default: train)")
    parser.add_argument("--index", type=int, help="number of the task (default: drawn with the seed)")
    parser.add_argument("--oracle", action="store_true", help="let the oracle play")
    return parser


def run(args: argparse.Namespace) -> int:
    """Play one episode."""
    env = make_env(args)
    options = {"split": args.split} if args.index is None else {"split": args.split, "index": args.index}
    try:
        record = env.reset(seed=args.seed, options=options).info["envgym"]
        _show("system", record.system_prompt)
        for tool in record.tools:
            _show("tool", f"/{usage(tool.name, tool.parameters)}: {tool.description}")
        _show("env", str(record.observation))
        read = env.oracle if args.oracle else _reader(record.tools, sys.stdin)
        _play(env, read, echo=args.oracle or not sys.stdin.isatty())
    finally:
        env.close()
    return 0


def _play(env: AnyEnv, read: Callable[[], str | None], *, echo: bool) -> None:
    total = 0.0
    while True:
        action = read()
        if action is None:
            print(styled(f"\nleft; reward so far {total:g}", "dim"))
            return
        if echo:
            _show("agent", action)
        record: StepRecord = env.step(action).info["envgym"]
        total += record.reward.value if isinstance(record.reward, Scored) else 0.0
        _show("env", str(record.observation))
        if record.ending is not None:
            _show_ending(record, total)
            return


def _show(who: str, text: str) -> None:
    if text:
        print(f"{styled(who, 'cyan')}: {text}")


def _show_ending(record: StepRecord, total: float) -> None:
    reason = f" ({record.error})" if record.error else ""
    turns = "1 turn" if record.turn == 0 else f"{record.turn + 1} turns"
    print(styled(f"{record.ending}{reason} after {turns}, reward {total:g}", "bold"))


def _reader(tools: Sequence[ToolSpec], stream: TextIO) -> Callable[[], str | None]:
    """Return a function that reads the next action, or None at the end."""

    def read() -> str | None:
        lines: list[str] = []
        while True:
            if stream.isatty():
                print(styled("> " if not lines else ". ", "bold"), end="", flush=True)
            line = stream.readline()
            if not line and not lines:
                return None
            text = line.rstrip("\n")
            lines.append(text.removesuffix("\\"))
            if text.endswith("\\"):
                continue
            try:
                return as_action("\n".join(lines), tools)
            except InvalidInput as error:
                print(error, file=sys.stderr)
                lines = []

    return read


def as_action(line: str, tools: Sequence[ToolSpec]) -> str:
    """Write `/TOOL ARGUMENTS` as a tool call; anything else stays as it is."""
    name, _, rest = line.removeprefix("/").partition(" ")
    spec = next((tool for tool in tools if tool.name == name), None)
    if not line.startswith("/") or spec is None:
        return line
    properties = spec.parameters.get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    try:
        value = json.loads(rest) if rest.strip() else {}
    except ValueError:
        value = rest.strip()
    if not isinstance(value, dict):
        if len(names) != 1:
            raise InvalidInput(sentence(f"/{name}", "be given a JSON object", rest, where="play", do='write {"a": 1}'))
        schema = properties[names[0]] if isinstance(properties, dict) else {}
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        value = {names[0]: rest.strip() if is_text else value}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': value}, ensure_ascii=False)}\n</tool_call>"
