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
    import socket

    from envgym.agents.policies.serving.server import PolicyServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", metavar="MODEL", help="tiny, smollm2, a Hugging Face directory or a hub name")
    engines = (
        "vllm, transformers, or auto (default): vllm where it is installed for the torch that is, else transformers"
    )
    parser.add_argument("--engine", choices=("auto", "vllm", "transformers"), default="auto", help=engines)
    parser.add_argument("--adapter", metavar="DIR", help="LoRA adapter, merged into the weights")
    parser.add_argument("--tokenizer", metavar="NAME", help="where the tokenizer is (default: at MODEL)")
    parser.add_argument("--weights", metavar="DIR", help="begin with the newest weights that a run wrote there")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default); vllm: as it was built")
    parser.add_argument("--threads", type=int, help="CPU threads of torch (default: torch's own choice)")
    parser.add_argument("--cache-gib", type=float, default=2.0, help="vllm: memory for keys and values (default: 2)")
    parser.add_argument(
        "--max-context", type=int, help="vllm: longest context with its sample (default: all positions)"
    )
    parser.add_argument("--max-batch", type=int, default=64, help="requests that are sampled at a time (default: 64)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8001, help="port; 0: any free one (default: 8001)")


def run(args: argparse.Namespace) -> int:
    """Load the model, say where it is served, and serve it until interrupted."""
    from envgym.agents.policies.serving.backend import TOKEN_VARIABLE
    from envgym.http_server import is_loopback

    chosen = os.environ.get(TOKEN_VARIABLE)
    token = chosen or (None if is_loopback(args.host) else secrets.token_urlsafe(24))
    if token is not None and not chosen:
        echo(f"Clients need {TOKEN_VARIABLE}={token}", flush=True)
    if args.engine == "auto":
        from envgym.agents.policies.serving.vllm_start import is_usable  # torch is heavy

        args.engine = "vllm" if is_usable() else "transformers"
    with contextlib.suppress(KeyboardInterrupt):
        if args.engine == "vllm":
            _serve_vllm(args, token)
        else:
            asyncio.run(_serve(args, token))
    return 0


def _serve_vllm(args: argparse.Namespace, token: str | None) -> None:
    from envgym.agents.policies.serving.vllm_start import VllmServerSettings, serve_vllm

    settings = VllmServerSettings(
        model=args.model,
        adapter=args.adapter,
        tokenizer=args.tokenizer,
        weights=args.weights,
        dtype=args.dtype,
        device=args.device,
        threads=args.threads,
        max_batch=args.max_batch,
        max_context=args.max_context,
        cache_gib=args.cache_gib,
        token=token,
    )
    with _listening(args) as listening:
        serve_vllm(settings, listening, lambda url: _announce(args.model, url))


async def _serve(args: argparse.Namespace, token: str | None) -> None:
    from envgym.agents.policies.serving.start import load_server

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
        raise _in_use(args, error) from None
    _announce(args.model, server.http.url)
    try:
        await asyncio.Event().wait()
    finally:
        await server.close()


def _announce(model: str, url: str) -> None:
    from envgym.processes import announce

    announce(url=url)
    echo(f"{model} at {url}; Ctrl-C stops.", flush=True)


def _listening(args: argparse.Namespace) -> "socket.socket":
    """Return a socket that is bound to the address. Raises: InvalidInput: it cannot be used."""
    import socket

    listening = socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((args.host, args.port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise _in_use(args, error) from None
    return listening


def _in_use(args: argparse.Namespace, error: Exception) -> InvalidInput:
    got, reason = f"{args.host} port {args.port}", getattr(error, "strerror", None) or str(error)
    do = "choose another --port (0 takes a free one) or --host"
    return InvalidInput.of("address", "be free to listen on", got, where=reason, do=do)
