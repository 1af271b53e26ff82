"""`envgym policy-server`: a model behind HTTP, for runs of other processes and machines."""

import argparse
import asyncio
import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from envgym.cli.common import echo
from envgym.errors import InvalidInput

if TYPE_CHECKING:
    from envgym.agents.policies.serving.server import PolicyServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", metavar="MODEL", help="tiny, smollm2, a Hugging Face directory or a hub name")
    parser.add_argument("--adapter", metavar="DIR", help="LoRA adapter, merged into the weights")
    parser.add_argument("--tokenizer", metavar="NAME", help="where the tokenizer is (default: at MODEL)")
    parser.add_argument("--weights", metavar="DIR", help="begin with the newest weights that a run wrote there")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument("--threads", type=int, help="CPU threads of torch (default: torch's own choice)")
    parser.add_argument("--max-batch", type=int, default=64, help="requests that are sampled at a time (default: 64)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8001, help="port; 0: any free one (default: 8001)")


def run(args: argparse.Namespace) -> int:
    """Load the model, say where it is served, and serve it until interrupted."""
    from envgym.agents.policies.serving.backend import TOKEN_VARIABLE
    from envgym.http_server import is_loopback

    chosen = os.environ.get(TOKEN_VARIABLE)
    token = chosen or (None if is_loopback(args.host) else secrets.token_urlsafe(24))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(args, token, is_token_new=token is not None and not chosen))
    return 0


async def _serve(args: argparse.Namespace, token: str | None, *, is_token_new: bool) -> None:
    from envgym.agents.policies.serving.backend import TOKEN_VARIABLE
    from envgym.agents.policies.serving.start import load_server
    from envgym.processes import announce

    server: PolicyServer = await asyncio.to_thread(
        load_server,
        args.model,
        adapter=args.adapter,
        tokenizer=args.tokenizer,
        weights=args.weights,
        dtype=args.dtype,
        device=args.device,
        threads=args.threads,
        max_batch=args.max_batch,
        token=token,
    )
    try:
        await server.http.start(args.host, args.port)
    except (OSError, OverflowError) as error:
        got, reason = f"{args.host} port {args.port}", getattr(error, "strerror", None) or str(error)
        do = "choose another --port (0 takes a free one) or --host"
        raise InvalidInput.of("address", "be free to listen on", got, where=reason, do=do) from None
    if is_token_new:
        echo(f"Clients need {TOKEN_VARIABLE}={token}", flush=True)
    announce(url=server.http.url)
    echo(f"{args.model} at {server.http.url}; Ctrl-C stops.", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.close()
