"""A server that vLLM itself runs, with the tiny model."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from envgym.agents.models.loading import resolve_model

_OPTIONS = (
    "--dtype=float32 --max-model-len=1001 --kv-cache-memory-bytes=100000000 --block-size=32 --enforce-eager "
    "--logprobs-mode=processed_logprobs --enable-prompt-tokens-details --served-model-name=tiny"
)


@contextmanager
def serve_with_vllm(folder: Path) -> Iterator[str]:
    """Serve the tiny model as `vllm serve` does, whose script asks for a package that is called `vllm`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"--host=127.0.0.1 --port={port} --model={resolve_model('tiny')} {_OPTIONS}"
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words.split()],
            env={**os.environ, **quiet, "OMP_NUM_THREADS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}/v1"
        try:
            _wait_for(process, url, folder / "log")
            yield url
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind
            process.wait()


def _wait_for(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    while process.poll() is None:
        try:
            httpx.get(url + "/models", trust_env=False).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(log.read_text(errors="replace")[-2000:])
