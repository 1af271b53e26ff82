"""`envgym policy-server`: a model behind HTTP, for runs of other processes and machines."""

import argparse
import asyncio
import contextlib
import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from envgym.cli.common import echo, server_token
from envgym.config.settings import apply_overrides, build_settings
from envgym.errors import SettingsError

if TYPE_CHECKING:
    import socket

    from envgym.agents.policies.serving.backend import ServedModel


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
    help_split = "vllm: devices that the weights are split over (default: 1)"
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help=help_split)
    help_vllm = "vllm: more arguments of its engine, such as block_size=16; may be repeated"
    parser.add_argument("--vllm", action="append", default=[], metavar="NAME=VALUE", help=help_vllm)
    parser.add_argument("--max-batch", type=int, default=64, help="requests that are sampled at a time (default: 64)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8001, help="port; 0: any free one (default: 8001)")


def run(args: argparse.Namespace) -> int:
    """Load the model, print where it is served, and serve it until interrupted."""
    from envgym.agents.policies.serving.backend import TOKEN_VARIABLE, ServedModel
    from envgym.agents.settings import EngineSettings
    from envgym.runtime.event_loop import run_coroutine

    args.token = server_token(args.host, TOKEN_VARIABLE)
    split = {"tensor_parallel": args.tensor_parallel, "vllm": apply_overrides({}, args.vllm, option="--vllm")}
    engine = build_settings(EngineSettings, split, where="policy-server")
    engine.check_servable()
    args.vllm = dict(engine.vllm)
    served = ServedModel(**{field.name: getattr(args, field.name) for field in dataclasses.fields(ServedModel)})
    if args.engine == "auto":
        from envgym.agents.policies.vllm.serve_start import is_usable  # torch is heavy

        args.engine = "vllm" if is_usable() else "transformers"
    if args.vllm or args.tensor_parallel > 1:
        must, do = "be vllm with --tensor-parallel or --vllm", "use --engine vllm, or leave these out"
        SettingsError.unless(args.engine == "vllm", "--engine", must, args.engine, where="policy-server", do=do)
    with contextlib.suppress(KeyboardInterrupt):
        if args.engine == "vllm":
            from envgym.agents.policies.vllm.serve_start import serve_vllm

            with _listening(args) as listening:
                serve_vllm(served, listening, partial(_announce, served.model))
        else:
            run_coroutine(_serve(served, args.host, args.port))
    return 0


async def _serve(served: "ServedModel", host: str, port: int) -> None:
    from envgym.agents.policies.serving.server import load_server

    server = await asyncio.to_thread(load_server, served)
    try:
        await server.http.serve(host, port, partial(_announce, served.model))
    finally:
        await server.close()


def _announce(model: str, url: str) -> None:
    from envgym.runtime.processes.group import announce

    announce(url=url)
    echo(f"{model} at {url}; Ctrl-C stops.", flush=True)


def _listening(args: argparse.Namespace) -> "socket.socket":
    import socket

    from envgym.runtime.http.access import unusable_address

    listening = socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((args.host, args.port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise unusable_address(args.host, args.port, error) from None
    return listening
