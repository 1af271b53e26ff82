"""From a model's name to vLLM serving it in this process, which becomes that server until it is told to end."""

import asyncio
import json
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from envgym.agents.models.loading import load, load_adapter, load_tokenizer, resolve_model
from envgym.agents.policies.serving.backend import ServedModel
from envgym.agents.policies.serving.identity import architecture_digest, read_config, tokenizer_digest
from envgym.agents.policies.serving.link import ServerLink, ServerRefused, ServerState
from envgym.agents.policies.vllm.arguments import check_names, check_split
from envgym.agents.policies.vllm.engine import (
    OPTIONS,
    VllmLaunchSettings,
    check_installed,
    engine_arguments,
    environment,
    import_vllm,
    is_on_cpu,
    not_started,
    one_line,
    worker_variables,
)
from envgym.agents.policies.vllm.serve_app import DESCRIPTION_VARIABLE, URL_VARIABLE
from envgym.agents.policies.weights.transport import update_of
from envgym.agents.policies.weights.weight_store import StoredWeights, WeightStore
from envgym.errors import InvalidInput, SettingsError
from envgym.runtime.http.access import address_url
from envgym.runtime.http.client import ConnectionFailed

_POLL_S = 0.2
_PACKAGE = "envgym.agents.policies.vllm"


def is_usable() -> bool:
    """Return whether a vLLM is installed that was built for the torch that is."""
    try:
        check_installed(torch.__version__)
    except InvalidInput:
        return False
    return True


def serve_vllm(served: ServedModel, sock: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve a model from a socket that is bound, until interrupted or terminated.

    Args:
        served: the model, and how it is served.
        sock: where to listen.
        on_ready: called with the address when it serves.

    Raises: SettingsError: no vLLM, or none that loads. InvalidInput, UnknownName: the model or the cache cannot be had.
    """
    installed = check_installed(torch.__version__)
    import_vllm(installed)
    _check_device(served.device, installed)
    check_names(served.vllm, where="--vllm")
    source = resolve_model(served.model)
    config = read_config(source)
    check_split(config, served.tensor_parallel, where="policy server")
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    url = address_url(*sock.getsockname()[:2])
    digest = tokenizer_digest(load_tokenizer(resolve_model(served.tokenizer or served.model)))
    described = {"model": served.model, "model_digest": architecture_digest(source), "tokenizer_digest": digest}
    launch = VllmLaunchSettings(
        source=source,
        dtype=served.dtype,
        head_dtype="same",
        max_tokens=served.max_context or (positions if is_on_cpu() else None),
        max_batch=served.max_batch,
        cache_bytes=int(served.cache_gib * 2**30),
        threads=served.threads,
        restarts=0,
        tensor_parallel=served.tensor_parallel,
        arguments=served.vllm,
    )
    with tempfile.TemporaryDirectory(prefix="envgym-vllm-") as folder:
        report = Path(folder) / "reason"
        set_here = {"VLLM_SERVER_DEV_MODE": "1", URL_VARIABLE: url, DESCRIPTION_VARIABLE: json.dumps(described)}
        with environment({**worker_variables(launch, report), **set_here}):
            first = _first_weights(served, Path(folder))
            try:
                asyncio.run(_serve(_parse(served, launch), sock, url, served.token, first, on_ready))
            except (KeyboardInterrupt, InvalidInput):
                raise
            except Exception as error:  # vLLM raises whatever its parts raise
                reason = one_line(report.read_text(encoding="utf-8")) if report.exists() else one_line(error)
                raise not_started(source, installed, reason, served.vllm, names=OPTIONS) from error


def _check_device(device: str, installed: str) -> None:
    from vllm.platforms import current_platform

    built_for = current_platform.device_type
    do = "use --device auto, or --engine transformers"
    holds = device in ("auto", built_for)
    SettingsError.unless(
        holds, "device", f"be {built_for}, as {installed} is built for it", device, where="vLLM", do=do
    )


def _first_weights(served: ServedModel, folder: Path) -> StoredWeights | None:
    """Return the weights to begin with where they are not the model's own."""
    newest = None if served.weights is None else WeightStore(Path(served.weights)).newest()
    if newest is not None or served.adapter is None:
        return newest
    model: Any = load(served.model, dtype=served.dtype, device="cpu").model
    merged = load_adapter(model, served.adapter).merge_and_unload()
    return WeightStore(folder / "adapter").write(merged.named_parameters(), 0)


async def _serve(
    args: Any,  # argparse.Namespace of vLLM's options
    sock: socket.socket,
    url: str,
    token: str | None,
    first: StoredWeights | None,
    on_ready: Callable[[str], None],
) -> None:
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker

    serving = asyncio.create_task(run_server_worker(url, sock, args))
    starting = asyncio.create_task(_make_ready(url, token, first))
    await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            starting.result()
            on_ready(url)
        await serving
    finally:
        for task in (starting, serving):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _make_ready(url: str, token: str | None, first: StoredWeights | None) -> None:
    link = ServerLink(0, url, token=token, ceiling=1)
    try:
        while True:
            with suppress(ConnectionFailed, TimeoutError, ServerRefused):
                await link.ask("GET", "/health")
                break
            await asyncio.sleep(_POLL_S)
        if first is not None:
            await link.update(update_of(first), timeout_s=600)
            if link.state is ServerState.BROKEN:
                do = "name weights of this model and type"
                raise InvalidInput.of("weights", "load", link.reason, where=str(first.directory), do=do)
    finally:
        await link.close()


def _parse(served: ServedModel, launch: VllmLaunchSettings) -> Any:  # argparse.Namespace of vLLM's options
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = {
        "model": launch.source,
        "tokenizer": resolve_model(served.tokenizer or served.model),
        "served-model-name": served.model,
        "dtype": launch.dtype,
        "weight-transfer-config": json.dumps({"backend": "envgym"}),
        "worker-extension-cls": f"{_PACKAGE}.serve_worker.LiveDigests",
        "middleware": f"{_PACKAGE}.serve_app.Frontend",
        "uvicorn-log-level": "warning",
    }
    flags = ["enable-scale-out", "enable-prompt-tokens-details", "disable-uvicorn-access-log"]
    words = [f"--{name}={value}" for name, value in options.items()] + [f"--{name}" for name in flags]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    for name, value in engine_arguments(launch).items():
        setattr(args, name, value)
    validate_parsed_serve_args(args)
    return args
