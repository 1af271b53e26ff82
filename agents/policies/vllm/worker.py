"""The way of new weights to vLLM's own process, and what else runs there.

`WeightStaging` writes the newest weights to a file that the process maps: checked by name and shape, and there again
after a restart. In the process, which imports this module by its name, they are loaded; it also writes down why it
failed, and ends with its owner.
"""

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from envgym.agents.models.weights import AdaptedWeights, add_change
from envgym.agents.policies.weights.adapted_base import flatten, read_changes
from envgym.errors import InvalidInput, check_known

_WHERE = "VllmPolicy"
_IN_MEMORY = Path("/dev/shm")
"""Linux's file system in memory."""


class StagedFiles(NamedTuple):
    """Files of one version."""

    path: Path
    base: Path | None = None
    """With the weights that `path` has the adapters of; None: it has all weights."""


class WeightStaging:
    """At most two versions of the weights, the last of which is complete."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:  # PretrainedConfig
        """Learn the names and shapes of the architecture's weights; nothing is allocated."""
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        own = {name: parameter.shape for name, parameter in model.named_parameters()}
        tied = {name: parameter.shape for name, parameter in model.named_parameters(remove_duplicate=False)}
        self._shapes, self._tied, self._dtype = own, tied.keys() - own.keys(), dtype
        self._known = {**tied, **own}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0
        self._base_state: object = None
        self._base: Path | None = None
        """File with the weights that adapters belong to; None: there are no adapters."""
        self.newest: StagedFiles | None = None
        """None: the weights are those that the model was loaded with."""

    def write(self, named_tensors: Iterable[tuple[str, Tensor]]) -> "StagedFiles":
        """Write all weights to a new file, which becomes the newest when it is `accept`ed.

        Of `AdaptedWeights` the new file has the adapters, and another file has the base.

        Raises: UnknownName: the model has no such weight. InvalidInput: another shape, or some weights only.
        """
        if not isinstance(named_tensors, AdaptedWeights):
            return StagedFiles(self._write(self._checked(named_tensors)))
        if self._base is None or self._base_state != named_tensors.base_state:
            self._base = self._write(self._checked(named_tensors.base()))
            self._base_state = named_tensors.base_state
        changes = read_changes(named_tensors.adapters(), self._known, where=_WHERE)
        return StagedFiles(self._write({name: tensor.contiguous() for name, tensor in flatten(changes)}), self._base)

    def _checked(self, named_tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return all weights in the type of the engine. Raises: as `write`."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in named_tensors:
            self._check(name, tensor)
            if name not in self._tied:
                tensors[name] = tensor.detach().to("cpu", self._dtype).contiguous()
        if missing := sorted(self._shapes.keys() - tensors.keys()):
            must, got = f"hold all {len(self._shapes)}", f"{len(tensors)}, without {missing[0]}"
            do = "send every weight; merged_weights(model) does, with adapters merged"
            raise InvalidInput.of("new weights", must, got, where=_WHERE, do=do)
        return tensors

    def _write(self, tensors: dict[str, Tensor]) -> Path:
        from safetensors.torch import save_file

        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        self._count += 1
        path = self._place(size) / f"{self._count}.safetensors"
        save_file(tensors, path)
        return path

    def accept(self, files: "StagedFiles") -> None:
        """Keep these files as the newest and delete those before."""
        for path in set(self.newest or ()) - set(files):
            if path is not None:
                path.unlink(missing_ok=True)
        self.newest = files

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _check(self, name: str, tensor: Tensor) -> None:
        if ".lora_" in name or ".base_layer." in name:
            do = "merge the adapters into the weights: merged_weights(model)"
            raise InvalidInput.of("new weights", "be the model's own", name, where=_WHERE, do=do)
        check_known("weight", name, self._known, where=_WHERE)
        if self._known[name] != tensor.shape:
            rule, do = f"have shape {list(self._known[name])}", "send the weights of the same architecture"
            raise InvalidInput.of(name, rule, list(tensor.shape), where=_WHERE, do=do)

    def _place(self, size: int) -> Path:
        """Return the folder, in memory where there is room for two files. Raises: InvalidInput: the disk is full."""
        if self._folder is None:
            places = [place for place in (_IN_MEMORY, Path(tempfile.gettempdir())) if place.is_dir()]
            roomy = [place for place in places if shutil.disk_usage(place).free > 2 * size]
            if not roomy:
                do = "free some, or set TMPDIR to a larger disk"
                must = f"have {2 * size} bytes free for weights"
                raise InvalidInput.of("temporary folder", must, str(places[-1]), where=_WHERE, do=do)
            self._folder = tempfile.TemporaryDirectory(prefix="envgym-weights-", dir=roomy[0])
        return Path(self._folder.name)


REPORT = "ENVGYM_VLLM_REPORT"
"""Environment variable with the file that takes the reason."""
OWNER = "ENVGYM_VLLM_OWNER"
"""Environment variable with the process that started this one."""


class StagedWeights:
    """Mixed into vLLM's worker, which has a `model_runner`."""

    model_runner: Any
    """vLLM's, whose interface is only known there."""

    def load_staged(self, path: str | None, base: str | None) -> None:
        """Put the weights of a safetensors file in place; the layout that kernels want is made anew.

        Args:
            path: file with all weights; with a base, with the matrices of adapters; None: the weights that the model
                was loaded with.
            base: file with the weights that the adapters belong to.
        """
        runner = self.model_runner
        if path is None:
            runner.reload_weights()
        else:
            tensors = _tensors(path) if base is None else _merged(path, base, runner.device)
            runner.reload_weights(weights_iterator=tensors)
        if getattr(runner.model_config.hf_text_config, "tie_word_embeddings", False):
            renew_head(runner.get_model())


def _tensors(path: str) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # no mapping
            yield name, file.get_tensor(name)


def _merged(path: str, base: str, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    shapes = {name: tensor.shape for name, tensor in _tensors(base)}
    changes = read_changes(_tensors(path), shapes, where=_WHERE)
    for name, tensor in _tensors(base):
        weight, change = tensor.to(device), changes.get(name)
        yield name, weight if change is None else add_change(name, weight, change)


def renew_head(model: nn.Module) -> None:
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
        error = record.exc_info[1] if record.exc_info else None
        target = Path(os.environ[REPORT])
        if error is not None and not target.exists():
            target.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def _end_with(owner: int) -> None:
    """End this process when the owner has been killed in a way that let it close nothing.

    The owner has started this process, or vLLM's engine, which then has started this process as one of several workers.
    In the second case the engine ends, too: it does not import this module.
    """
    parent = os.getppid()
    while os.getppid() == parent and owner in (parent, _parent_of(parent)):
        time.sleep(1.0)
    if parent not in (1, owner) and os.getppid() == parent:
        with suppress(ProcessLookupError):
            os.kill(parent, signal.SIGKILL)
    os._exit(1)


def _parent_of(process: int) -> int | None:
    import psutil  # type: ignore[import-untyped]  # it has no stubs; a dependency of vLLM

    try:
        parent: int = psutil.Process(process).ppid()
    except psutil.NoSuchProcess:
        return None
    return parent


if REPORT in os.environ:
    logging.getLogger("vllm").addHandler(_Reporter(logging.ERROR))
if OWNER in os.environ:
    threading.Thread(target=_end_with, args=[int(os.environ[OWNER])], daemon=True).start()
