"""`envgym serve`: environments behind HTTP, for training and evaluation on this machine or another."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TextIO

from envgym.cli.common import (
    add_set_argument,
    at_least_0,
    check_options,
    echo,
    env_kwargs,
    server_token,
    stdout_of_process,
)
from envgym.errors import InvalidInput, SettingsError

if TYPE_CHECKING:
    from envgym.connect.mcp_server import McpEnvServer
    from envgym.sandbox.machines.server import MachineServer
    from envgym.serving.sessions import SessionLimits

_DEFAULT_HOST: Final = "127.0.0.1"
_ENVGYM, _OPENENV, _MCP, _SANDBOX = "envgym", "openenv", "mcp", "sandbox"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    from envgym.sandbox.machines.server import MachineLimits
    from envgym.serving.sessions import SessionLimits
    from envgym.serving.wire import DEFAULT_PORT

    limits, machines = SessionLimits(), MachineLimits()
    help_envs = "ids or import paths; a client can make no others; with --protocol sandbox: the name of one sandbox"
    parser.add_argument("envs", metavar="ENV", nargs="+", help=help_envs)
    parser.add_argument("--host", help=f"address to listen on (default: {_DEFAULT_HOST})")
    help_port = f"port; 0: any free one (default: {DEFAULT_PORT})"
    parser.add_argument("--port", type=at_least_0, help=help_port)
    help_sessions = f"envs at a time; further clients wait (default: {limits.sessions}; machines: {machines.machines})"
    parser.add_argument("--sessions", type=at_least_0, metavar="N", help=help_sessions)
    defaults = f"{limits.lease_s:g}; machines: {machines.lease_s:g}"
    help_lease = f"end a session whose client was silent for so long (default: {defaults})"
    parser.add_argument("--lease-seconds", type=float, metavar="S", help=help_lease)
    help_idle = f"end a session that was not called for so long, though its client lives (default: {limits.idle_s:g})"
    parser.add_argument("--idle-seconds", type=float, default=limits.idle_s, metavar="S", help=help_idle)
    help_call = f"give up a call of an env after so long (default: {limits.call_s:g})"
    parser.add_argument("--call-seconds", type=float, default=limits.call_s, metavar="S", help=help_call)
    parser.add_argument("--no-oracle", action="store_true", help="never tell a client the best next action")
    help_protocol = (
        "what clients speak (default: envgym); openenv: the protocol of OpenEnv, for its clients; mcp: the Model "
        "Context Protocol, of one environment; sandbox: machines of a sandbox such as docker, for remote:URL"
    )
    parser.add_argument("--protocol", choices=(_ENVGYM, _OPENENV, _MCP, _SANDBOX), default=_ENVGYM, help=help_protocol)
    help_stdio = "with --protocol mcp: serve the program that started this one, on standard input and output"
    parser.add_argument("--stdio", action="store_true", help=help_stdio)
    add_set_argument(parser, "keyword argument of every environment, such as level=3")
    help_client = "let clients choose this setting, among numbers, true, false and words; may be repeated"
    parser.add_argument("--client-setting", action="append", default=[], metavar="NAME", help=help_client)
    help_accept = (
        "let clients ask for these settings of ENV, as in 'math/arithmetic-v0={\"level\": 3}'; may be repeated"
    )
    parser.add_argument("--accept", action="append", default=[], metavar="ENV={...}", help=help_accept)
    help_tasks = "let clients bring tasks of their own, with payloads, which environments may take for file names"
    parser.add_argument("--client-tasks", action="store_true", help=help_tasks)


def run(args: argparse.Namespace) -> int:
    """Make the environments, print their addresses, and serve them until interrupted."""
    from envgym.connect.mcp_server import PATH as MCP_PATH
    from envgym.connect.mcp_server import TOKEN_VARIABLE as MCP_TOKEN_VARIABLE
    from envgym.connect.mcp_server import McpEnvServer
    from envgym.connect.openenv_frames import TOKEN_VARIABLE as OPENENV_TOKEN_VARIABLE
    from envgym.connect.openenv_server import OpenEnvServer
    from envgym.runtime.event_loop import run_coroutine
    from envgym.runtime.processes.group import announce
    from envgym.runtime.processes.interrupts import describe_interrupt_by
    from envgym.sandbox.machines.server import MachineLimits, MachineServer
    from envgym.sandbox.machines.wire import DEFAULT_PORT as SANDBOX_PORT
    from envgym.sandbox.machines.wire import TOKEN_VARIABLE as SANDBOX_TOKEN_VARIABLE
    from envgym.serving.server import EnvServer
    from envgym.serving.sessions import SessionLimits
    from envgym.serving.templates import ClientRights, Templates
    from envgym.serving.wire import DEFAULT_PORT, TOKEN_VARIABLE

    host = _DEFAULT_HOST if args.host is None else args.host
    port = DEFAULT_PORT if args.port is None else args.port
    sessions, lease_s = MachineLimits() if args.protocol == _SANDBOX else SessionLimits()[:2]
    sessions = sessions if args.sessions is None else args.sessions
    lease_s = lease_s if args.lease_seconds is None else args.lease_seconds
    limits = SessionLimits(sessions, lease_s, args.idle_seconds, args.call_seconds)
    got, do = tuple(limits), "raise --sessions, --lease-seconds, --idle-seconds or --call-seconds"
    InvalidInput.unless(all(value > 0 for value in limits), "limits", "be above 0", got, where="envgym serve", do=do)
    rights = ClientRights(args.client_setting, _variants(args.accept), args.client_tasks)
    server: EnvServer | OpenEnvServer | McpEnvServer | MachineServer
    if args.protocol == _SANDBOX:
        port = SANDBOX_PORT if args.port is None else args.port
        server = _machine_server(args, server_token(host, SANDBOX_TOKEN_VARIABLE), limits)
    elif args.protocol == _MCP:
        _check_mcp(args)
        if args.stdio:
            return _serve_parent(args, limits)
        token = server_token(host, MCP_TOKEN_VARIABLE)
        server = McpEnvServer(args.envs[0], env_kwargs(args.settings), token=token, limits=limits)
    elif args.protocol == _OPENENV:
        _check_options(args, "host", "port", "sessions", "lease_seconds", "idle_seconds", "call_seconds")
        token = server_token(host, OPENENV_TOKEN_VARIABLE)
        server = OpenEnvServer(Templates(args.envs, env_kwargs(args.settings)), token=token, limits=limits)
    else:
        InvalidInput.unless(
            not args.stdio, "--stdio", "come with --protocol mcp", "none", where="envgym serve", do="add --protocol mcp"
        )
        token = server_token(host, TOKEN_VARIABLE)
        templates = Templates(args.envs, env_kwargs(args.settings), rights)
        server = EnvServer(templates, token=token, limits=limits, has_oracle=not args.no_oracle)
    ended = "no session was open"

    async def serve() -> None:
        nonlocal ended
        url = await server.listen(host, port)
        try:
            for env_id in args.envs:
                addresses = {_MCP: f"{url}{MCP_PATH}", _SANDBOX: f"remote:{url}"}
                echo(addresses.get(args.protocol, f"{url}/{env_id}"), flush=True)
            metrics = f" {url}/metrics counts them;" if isinstance(server, EnvServer) else ""
            echo(f"{sessions} sessions at most;{metrics} Ctrl-C stops.", flush=True)
            announce(url=url)
            await asyncio.Event().wait()
        finally:
            num_sessions = server.num_sessions
            num_open = await server.close()
            ended = f"{num_sessions} sessions were ended" + (f"; {num_open} envs did not close" if num_open else "")

    describe_interrupt_by(lambda: ended)
    run_coroutine(serve())
    return 0


def _machine_server(args: argparse.Namespace, token: str | None, limits: "SessionLimits") -> "MachineServer":
    """Return a server of machines. Raises: InvalidInput: an option or the sandbox does not fit."""
    from envgym.sandbox import make_machines
    from envgym.sandbox.machines.server import MachineLimits, MachineServer

    where = f"--protocol {_SANDBOX}"
    _check_options(args, "host", "port", "sessions", "lease_seconds")
    do = "start a server for each"
    InvalidInput.unless(len(args.envs) == 1, "ENV", "be one sandbox, such as docker", args.envs, where=where, do=do)
    do = "leave it out"
    InvalidInput.unless(not args.settings, "--set", "be left out", args.settings, where=where, do=do)
    back_end = make_machines(args.envs[0])
    reason = back_end.why_unavailable()
    InvalidInput.unless(reason is None, "sandbox", "start machines here", reason, where=where, do="see docs/sandbox.md")
    return MachineServer(back_end, token=token, limits=MachineLimits(limits.sessions, limits.lease_s))


def _serve_parent(args: argparse.Namespace, limits: "SessionLimits") -> int:
    """Serve the program that started this one; what an env prints is no part of the protocol."""
    from envgym.connect.mcp_server import McpEnvServer
    from envgym.runtime.event_loop import run_coroutine

    with stdout_of_process(encoding="utf-8") as stdout:
        server = McpEnvServer(args.envs[0], env_kwargs(args.settings), limits=limits)
        run_coroutine(_serve_stdio(server, stdout))
    return 0


async def _serve_stdio(server: "McpEnvServer", stdout: TextIO) -> None:
    try:
        await server.serve_stdio(stdout)
    finally:
        await server.close()


def _check_mcp(args: argparse.Namespace) -> None:
    """Check the options of the Model Context Protocol. Raises: InvalidInput, SettingsError: one does not fit."""
    where = "--protocol mcp"
    _check_options(args, *(() if args.stdio else ("host", "port")), "sessions", "idle_seconds", "call_seconds", "stdio")
    InvalidInput.unless(len(args.envs) == 1, "ENV", "be one", args.envs, where=where, do="start a server for each")
    has_end, do = isfinite(args.idle_seconds), "leave it out, or write seconds"
    InvalidInput.unless(has_end, "--idle-seconds", "be finite", args.idle_seconds, where=where, do=do)


def _check_options(args: argparse.Namespace, *allowed: str) -> None:
    """Check that no option is set that another project's protocol has no form for. Raises: SettingsError."""
    names = ("no_oracle", "client_setting", "accept", "client_tasks", "stdio", "host", "port", "lease_seconds")
    values = {name: getattr(args, name) for name in names}
    options = [name for name, value in values.items() if value is not None and value is not False and value != []]
    where = " ".join(["--protocol", args.protocol, *(["--stdio"] if args.stdio else [])])
    check_options(options, [*allowed, "set"], where=where, do="leave them out")


def _variants(texts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:  # JSON
    variants: dict[str, list[dict[str, Any]]] = {}
    for text in texts:
        env_id, equals, written = text.partition("={")
        try:
            settings = json.loads(f"{{{written}") if equals else None
        except (ValueError, RecursionError):
            settings = None
        if not isinstance(settings, dict):
            do = "write it as in 'math/arithmetic-v0={\"level\": 3}'"
            raise SettingsError.of("--accept", "be an id, = and a JSON object", text, where="command line", do=do)
        variants.setdefault(env_id, []).append(settings)
    return variants
