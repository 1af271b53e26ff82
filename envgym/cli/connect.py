"""`envgym connect`: the few lines with which another project uses an environment of envgym."""

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from envgym.cli.common import add_env_arguments, at_least_0, echo, env_kwargs, make_env
from envgym.core.tasks import Split
from envgym.errors import InvalidInput

_ROWS: Final = 1000
"""Rows of the data set in the program for TRL, unless the environment has fewer tasks."""
_SAMPLES: Final = 20
"""Samples in the command for inspect-ai, unless the split has fewer tasks."""
_TEST_ROWS: Final = 100
_PORT: Final = 8000
_TASKS: Final = 8
"""Tasks of the evaluation with verifiers, unless the environment has fewer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("name", metavar="NAME", choices=tuple(_PROGRAMS), help=f"one of {', '.join(_PROGRAMS)}")
    add_env_arguments(parser)
    help_rows = "skyrl and verl: write the first N tasks of the split to --out, as rows without answers"
    parser.add_argument("--rows", type=at_least_0, metavar="N", help=help_rows)
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the rows, .parquet or .jsonl")
    help_overwrite = "write the rows also if --out exists"
    parser.add_argument("--overwrite", action="store_true", default=None, help=help_overwrite)
    parser.add_argument("--split", choices=tuple(map(str, Split)), help="split of the rows (default: train)")


def run(args: argparse.Namespace) -> int:
    """Check that the environment can be used there, and print the lines, or write rows."""
    if options := [name for name in ("rows", "out", "split", "overwrite") if getattr(args, name) is not None]:
        return _write_rows(args, options)
    echo(_PROGRAMS[args.name](args).rstrip("\n"))
    return 0


def _trl(args: argparse.Namespace) -> str:
    """Return a program that trains with TRL. Raises: InvalidInput: TRL cannot call the tools of the environment."""
    from envgym.connect.trl import environment

    kwargs = env_kwargs(args.settings)
    environment(args.env, settings=kwargs).close()
    rows = _capped(_sizes(args)[Split.TRAIN], _ROWS)
    settings = f", settings={kwargs!r}" if kwargs else ""
    return f"""# pip install envgym trl datasets
from trl import GRPOConfig, GRPOTrainer

from envgym.connect.trl import environment

env = environment({json.dumps(args.env)}{settings})
trainer = GRPOTrainer(
    model="Qwen/Qwen3-0.6B",
    args=GRPOConfig(output_dir="runs/trl", max_steps=50, max_completion_length=2048, max_tool_calling_iterations=12),
    train_dataset=env.dataset({rows}),
    environment_factory=env,
)
trainer.train()
env.close()
"""


def _openenv(args: argparse.Namespace) -> str:
    """Return a program that plays with OpenEnv's client. Raises: InvalidInput: a tool has a name of the protocol."""
    from envgym.connect.openenv_session import check_tool_names

    with closing(make_env(args)) as env:
        check_tool_names([item.spec for item in env.unwrapped.toolset().values()], args.env)
    served = _command("serve", "--protocol", "openenv", args.env, *_set_words(args.settings), "--port", str(_PORT))
    return f"""# The server: pip install 'envgym[openenv]', then
#   {served}
# The client: pip install openenv
from openenv import GenericEnvClient

with GenericEnvClient(base_url="http://127.0.0.1:{_PORT}").sync() as env:
    result = env.reset(split="train", index=0)
    print(result.observation["text"], result.observation["tools"])
    result = env.step({{"text": "Hello."}})  # with calls: "tool_calls": [{{"name": ..., "arguments": {{...}}}}]
    print(result.observation["text"], result.reward, result.done)
"""


def _mcp(args: argparse.Namespace) -> str:
    """Return the settings of an MCP client."""
    make_env(args).close()
    words = ("serve", "--protocol", "mcp", args.env, *_set_words(args.settings))
    folder = Path.cwd()
    settings = {"mcpServers": {"envgym": {"command": "envgym", "args": [*words, "--stdio"], "cwd": str(folder)}}}
    return f"""# pip install 'envgym[mcp]'. A client that starts its servers is given these settings.
# Paths in them are relative to `cwd`. A client without the key `cwd` needs absolute paths:
{json.dumps(settings, indent=2)}
# A client over HTTP is given http://127.0.0.1:{_PORT}/mcp, and the server is started by:
#   {_command(*words, "--port", str(_PORT))}
"""


def _skyrl(args: argparse.Namespace) -> str:
    """Return the class for SkyRL, after the commands that write its rows."""
    return _rows_program(args, "skyrl")


def _verl(args: argparse.Namespace) -> str:
    """Return the agent loop for verl, after the commands that write its rows."""
    return _rows_program(args, "verl")


def _rows_program(args: argparse.Namespace, project: str) -> str:
    sizes = _sizes(args)
    words = ("connect", project, args.env, *_set_words(args.settings))
    commands = []
    for split, most, name in ((Split.TRAIN, _ROWS, "train"), (Split.TEST, _TEST_ROWS, "validation")):
        if count := _capped(sizes[split], most):
            choice = () if split is Split.TRAIN else ("--split", split.value)
            commands.append(f"#   {_command(*words, *choice, '--rows', str(count), '--out', f'{name}.parquet')}\n")
    program = (files("envgym.cli") / "templates" / "connect" / f"{project}.py.tmpl").read_text(encoding="utf-8")
    return f"""# connect_{project}.py, beside an installed envgym and {project}. The rows for it are written by:
{"".join(commands)}{program}"""


def _write_rows(args: argparse.Namespace, options: Sequence[str]) -> int:
    """Write rows of tasks. Raises: InvalidInput: no file or number, or the project takes no rows."""
    from envgym.connect.task_rows import PROJECTS, check_path, task_rows, write_rows

    where = f"envgym connect {args.name}"
    if args.name not in PROJECTS:
        do = "leave it out"
        raise InvalidInput.of(f"--{options[0]}", f"be used with {' or '.join(PROJECTS)}", args.name, where=where, do=do)
    for name in ("rows", "out"):
        do = "pass both, as in --rows 1000 --out train.parquet"
        InvalidInput.unless(
            name in options, "--rows and --out", "be given together", f"no --{name}", where=where, do=do
        )
    check_path(args.out, overwrite=bool(args.overwrite))
    split = Split.TRAIN if args.split is None else Split(args.split)
    rows = task_rows(args.name, args.env, env_kwargs(args.settings), args.rows, split=split)
    write_rows(args.out, rows)
    echo(f"{args.out} holds {len(rows)} rows of {args.env}, split {split}.")
    return 0


def _verifiers(args: argparse.Namespace) -> str:
    """Return a command that evaluates with verifiers."""
    sizes = _sizes(args)
    split = next((split for split in (Split.TRAIN, Split.TEST) if sizes[split] != 0), Split.TRAIN)
    kwargs = _json_settings(args)
    settings = ("--env.taskset.settings", json.dumps(kwargs)) if kwargs else ()
    choice = () if split is Split.TRAIN else ("--env.taskset.split", split.value)
    env_words = ("--env.taskset.env", args.env, *choice, *settings, "--env.agent.runtime.type", "subprocess")
    model = ("-m", "MODEL", "--client.base-url", f"http://127.0.0.1:{_PORT}/v1", "--client.api-key-var", "API_KEY")
    count = ("-n", str(_capped(sizes[split], _TASKS)), "-r", "2", "--no-push")
    return f"""# pip install envgym verifiers. MODEL is served at the address, with the key in the variable API_KEY:
{shlex.join(("vf-eval", "envgym_verifiers", *env_words, *model, *count))}
"""


def _inspect(args: argparse.Namespace) -> str:
    """Return the command that evaluates a model with inspect-ai."""
    sizes = _sizes(args)
    split = next((split for split in (Split.TEST, Split.TRAIN) if sizes[split] != 0), Split.TEST)
    kwargs = _json_settings(args)
    values = [f"env={args.env}", f"split={split}", f"limit={_capped(sizes[split], _SAMPLES)}"]
    values += [f"settings={json.dumps(kwargs)}"] if kwargs else []
    words = [word for value in values for word in ("-T", value)]
    return f"""# pip install 'envgym[inspect]', and the package of the model's provider, here openai
{shlex.join(["inspect", "eval", "envgym/env", *words, "--model", "openai/gpt-4o-mini"])}
"""


def _sizes(args: argparse.Namespace) -> dict[Split, int | None]:
    """Make the environment once. Returns: the number of tasks of each split; None: it has no last one."""
    with closing(make_env(args)) as env:
        return {split: env.tasks.size(split) for split in Split}


def _capped(size: int | None, most: int) -> int:
    return most if size is None else min(size, most)


def _json_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the environment. Raises: InvalidInput: they are no JSON, which a command cannot hold."""
    from envgym.connect.task_rows import settings_text

    settings: dict[str, Any] = json.loads(settings_text(env_kwargs(args.settings), args.env))
    return settings


def _command(*words: str) -> str:
    return shlex.join(["envgym", *words])


def _set_words(settings: Sequence[str]) -> list[str]:
    return [word for text in settings for word in ("--set", text)]


_PROGRAMS: Final[Mapping[str, Callable[[argparse.Namespace], str]]] = MappingProxyType(
    {
        "trl": _trl,
        "openenv": _openenv,
        "mcp": _mcp,
        "verifiers": _verifiers,
        "skyrl": _skyrl,
        "verl": _verl,
        "inspect": _inspect,
    }
)
"""Project -> what its user needs."""
