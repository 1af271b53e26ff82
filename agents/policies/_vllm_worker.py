"""What runs in vLLM's own process: loads staged weights, writes down why it failed, and ends with its owner.

vLLM imports this module there by its name; nobody imports it here.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

REPORT = "ENVGYM_VLLM_REPORT"
"""Environment variable with the file that takes the reason."""
OWNER = "ENVGYM_VLLM_OWNER"
"""Environment variable with the process that started this one."""


class StagedWeights:
    """Mixed into vLLM's worker, which has a `model_runner`."""

    model_runner: Any
    """vLLM's, whose interface is only known there."""

    def load_staged(self, path: str) -> None:
        """Put the weights of a safetensors file in place; the layout that kernels want is made anew."""
        runner = self.model_runner
        runner.reload_weights(weights_iterator=_tensors(path))
        if getattr(runner.model_config.hf_text_config, "tie_word_embeddings", False):
            _renew_head(runner.get_model())


def _tensors(path: str) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # no mapping
            yield name, file.get_tensor(name)


def _renew_head(model: nn.Module) -> None:
    """Let a head that is the embedding's twin take part in an update.

    A kernel may hold the head's weight in a layout of its own (on a CPU it does), and vLLM 0.32 makes that anew only
    for layers that a checkpoint names.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


class _Reporter(logging.Handler):
    """Keeps the first error that vLLM logs with its exception."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the exception as one line, unless there is one already."""
        error = record.exc_info[1] if record.exc_info else None
        target = Path(os.environ[REPORT])
        if error is not None and not target.exists():
            target.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def _end_with(owner: int) -> None:
    """End this process when its parent is another one: the owner is gone, killed in a way that let it close nothing."""
    while os.getppid() == owner:
        time.sleep(1.0)
    os._exit(1)


if REPORT in os.environ:
    logging.getLogger("vllm").addHandler(_Reporter(logging.ERROR))
if OWNER in os.environ:
    threading.Thread(target=_end_with, args=[int(os.environ[OWNER])], daemon=True).start()
