"""From a model's name to vLLM serving it in this process, which becomes that server until it is told to end."""

import asyncio
import json
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from envgym.agents.models.loading import load, load_adapter, load_tokenizer, resolve_model
from envgym.agents.policies._vllm_engine import (
    VllmLaunchSettings,
    check_installed,
    environment,
    import_vllm,
    not_started,
    one_line,
    worker_variables,
)
from envgym.agents.policies.serving.http import ConnectionFailed
from envgym.agents.policies.serving.identity import architecture_digest, read_config, tokenizer_digest
from envgym.agents.policies.serving.link import ServerLink, ServerRefused, ServerState
from envgym.agents.policies.serving.transport import WeightUpdate
from envgym.agents.policies.serving.vllm_app import DESCRIPTION_VARIABLE, URL_VARIABLE
from envgym.agents.policies.serving.weight_store import StoredWeights, WeightStore
from envgym.errors import InvalidInput, SettingsError

_POLL_S = 0.2
_FOLDER = "envgym.agents.policies.serving"
_CPU_BLOCK, _CPU_TOKENS = 32, 4096
"""As in `_vllm_engine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServerSettings:
    """What is served, and how."""

    model: str
    adapter: str | None = None
    tokenizer: str | None = None
    weights: str | None = None
    """Directory of a run's weights, of which the newest are taken."""
    dtype: str = "float32"
    device: str = "auto"
    """`auto`, or that for which vLLM was built."""
    threads: int | None = None
    max_batch: int = 64
    max_context: int | None = None
    """Longest context with its sample; None: all positions of the model."""
    cache_gib: float = 2.0
    """Memory for keys and values."""
    token: str | None = field(default=None, repr=False)


def is_usable() -> bool:
    """Return whether a vLLM is installed that was built for the torch that is."""
    try:
        check_installed(torch.__version__)
    except InvalidInput:
        return False
    return True


def serve_vllm(settings: VllmServerSettings, sock: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve a model from a socket that is bound, until interrupted or terminated.

    Args:
        settings: what to serve.
        sock: where to listen.
        on_ready: called with the address when it serves.

    Raises: SettingsError: no vLLM, or none that loads. InvalidInput, UnknownName: the model or the cache cannot be had.
    """
    installed = check_installed(torch.__version__)
    import_vllm(installed)
    _check_device(settings.device, installed)
    source = resolve_model(settings.model)
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    digest = tokenizer_digest(load_tokenizer(resolve_model(settings.tokenizer or settings.model)))
    described = {"model": settings.model, "model_digest": architecture_digest(source), "tokenizer_digest": digest}
    launch = VllmLaunchSettings(
        source=source,
        dtype=settings.dtype,
        head_dtype="same",
        max_tokens=0,
        max_batch=settings.max_batch,
        cache_bytes=int(settings.cache_gib * 2**30),
        threads=settings.threads,
        restarts=0,
    )
    with tempfile.TemporaryDirectory(prefix="envgym-vllm-") as folder:
        report = Path(folder) / "reason"
        set_here = {"VLLM_SERVER_DEV_MODE": "1", URL_VARIABLE: url, DESCRIPTION_VARIABLE: json.dumps(described)}
        with environment({**worker_variables(launch, report), **set_here}):
            first = _first_weights(settings, Path(folder))
            try:
                asyncio.run(_serve(settings, source, sock, url, first, on_ready))
            except (KeyboardInterrupt, InvalidInput):
                raise
            except Exception as error:  # vLLM raises whatever its parts raise
                reason = one_line(report.read_text(encoding="utf-8")) if report.exists() else one_line(error)
                raise not_started(source, installed, reason) from error


def _check_device(device: str, installed: str) -> None:
    """Compare a device with vLLM's. Raises: SettingsError: it was built for another one."""
    from vllm.platforms import current_platform

    built_for = current_platform.device_type
    do = "use --device auto, or --engine transformers"
    holds = device in ("auto", built_for)
    SettingsError.unless(
        holds, "device", f"be {built_for}, as {installed} is built for it", device, where="vLLM", do=do
    )


def _first_weights(settings: VllmServerSettings, folder: Path) -> StoredWeights | None:
    """Return the weights to begin with where they are not the model's own."""
    newest = None if settings.weights is None else WeightStore(Path(settings.weights)).newest()
    if newest is not None or settings.adapter is None:
        return newest
    model: Any = load(settings.model, dtype=settings.dtype, device="cpu").model
    merged = load_adapter(model, settings.adapter).merge_and_unload()
    return WeightStore(folder / "adapter").write(merged.named_parameters(), 0)


async def _serve(
    settings: VllmServerSettings,
    source: str,
    sock: socket.socket,
    url: str,
    first: StoredWeights | None,
    on_ready: Callable[[str], None],
) -> None:
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker

    serving = asyncio.create_task(run_server_worker(url, sock, _parse(settings, source)))
    starting = asyncio.create_task(_make_ready(url, settings.token, first))
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
    """Wait until the server answers, and bring it the weights that it is to begin with."""
    link = ServerLink(0, url, token=token, ceiling=1)
    try:
        while True:
            with suppress(ConnectionFailed, TimeoutError, ServerRefused):
                await link.ask("GET", "/health")
                break
            await asyncio.sleep(_POLL_S)
        if first is not None:
            await link.update(
                WeightUpdate(first.version, {"directory": str(first.directory)}, first.digests), timeout_s=600
            )
            if link.state is ServerState.BROKEN:
                do = "name weights of this model and type"
                raise InvalidInput.of("weights", "load", link.reason, where=str(first.directory), do=do)
    finally:
        await link.close()


def _parse(settings: VllmServerSettings, source: str) -> Any:  # argparse.Namespace of vLLM's options
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options: dict[str, object] = {
        "model": source,
        "tokenizer": resolve_model(settings.tokenizer or settings.model),
        "served-model-name": settings.model,
        "dtype": settings.dtype,
        "max-num-seqs": settings.max_batch,
        "kv-cache-memory-bytes": int(settings.cache_gib * 2**30),
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
        "weight-transfer-config": json.dumps({"backend": "envgym"}),
        "worker-extension-cls": f"{_FOLDER}.vllm_worker.LiveDigests",
        "middleware": f"{_FOLDER}.vllm_app.Frontend",
        "uvicorn-log-level": "warning",
    }
    flags = ["enable-scale-out", "enable-prompt-tokens-details", "enable-prefix-caching", "disable-uvicorn-access-log"]
    if settings.max_context is not None:
        options["max-model-len"] = settings.max_context
    if current_platform.is_cpu():
        positions = settings.max_context or read_config(source).get_text_config().max_position_embeddings
        options |= {"block-size": _CPU_BLOCK, "max-num-batched-tokens": max(positions, _CPU_TOKENS)}
        flags += ["enforce-eager", "no-enable-chunked-prefill"]
    words = [f"--{name}={value}" for name, value in options.items()] + [f"--{name}" for name in flags]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    validate_parsed_serve_args(args)
    return args
