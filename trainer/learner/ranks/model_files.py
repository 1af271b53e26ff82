"""A model directory, as `save_pretrained` writes it from a whole model, from weights that come layer by layer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

_SHARD_BYTES: Final = 2 << 30
"""Size at which a file of weights is full, in bytes; its last layer may exceed it."""
_DRAFT: Final = "model-{:05d}.draft"


class ModelWriter:
    """Writes configuration and weights; it holds the tensors of one file at most."""

    def __init__(self, model: Any, folder: Path) -> None:  # PreTrainedModel
        """Write the configuration.

        Args:
            model: whose configuration and names of weights are written; its weights are not read.
            folder: new, or exists.
        """
        self._model, self._folder = model, folder
        self._shard: dict[str, Tensor] = {}
        self._num_bytes = 0
        self._files: list[list[str]] = []
        """Names of the tensors in each file that is written."""
        self._total_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        model.config.dtype = str(model.dtype).removeprefix("torch.")
        model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)

    def add(self, layer: Mapping[str, Tensor]) -> None:
        """Write weights of one layer, all that a checkpoint keeps in one tensor or splits from one."""
        for name, tensor in revert_weight_conversion(self._model, dict(layer)).items():
            self._shard[name] = tensor.to("cpu").contiguous()
            self._num_bytes += tensor.nbytes
        if self._num_bytes >= _SHARD_BYTES:
            self._write()

    def finish(self) -> None:
        """Write what is left, and the index where there are several files."""
        self._write()
        count = len(self._files)
        names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        names = names if count > 1 else ["model.safetensors"]
        for number, name in enumerate(names):
            (self._folder / _DRAFT.format(number)).rename(self._folder / name)
        if count > 1:
            places = {tensor: name for name, tensors in zip(names, self._files, strict=True) for tensor in tensors}
            index = {"metadata": {"total_size": self._total_bytes}, "weight_map": dict(sorted(places.items()))}
            (self._folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

    def _write(self) -> None:
        if self._shard or not self._files:
            save_file(self._shard, self._folder / _DRAFT.format(len(self._files)), metadata={"format": "pt"})
            self._files.append(list(self._shard))
            self._total_bytes += self._num_bytes
        self._shard, self._num_bytes = {}, 0
