"""The newest weights in a file that vLLM's process maps: checked by name and shape, and there again after a restart."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envgym.errors import InvalidInput, sentence, unknown_name

_WHERE = "VllmPolicy"
_IN_MEMORY = Path("/dev/shm")
"""Linux's file system in memory."""


class WeightStaging:
    """At most two files, the last of which is complete."""

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
        self.newest: Path | None = None
        """None: the weights are those that the model was loaded with."""

    def write(self, named_tensors: Iterable[tuple[str, Tensor]]) -> Path:
        """Write all weights to a new file, which becomes the newest when it is `accept`ed.

        Raises: UnknownName: the model has no such weight. InvalidInput: another shape, or some weights only.
        """
        from safetensors.torch import save_file

        found: dict[str, Tensor] = {}
        for name, tensor in named_tensors:
            self._check(name, tensor)
            if name not in self._tied:
                found[name] = tensor.detach().to("cpu", self._dtype).contiguous()
        if missing := sorted(self._shapes.keys() - found.keys()):
            must, got = f"hold all {len(self._shapes)}", f"{len(found)}, without {missing[0]}"
            do = "send every weight; merged_weights(model) does, with adapters merged"
            raise InvalidInput(sentence("new weights", must, got, where=_WHERE, do=do))
        size = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
        self._count += 1
        path = self._place(size) / f"{self._count}.safetensors"
        save_file(found, path)
        return path

    def accept(self, path: Path) -> None:
        """Keep this file as the newest and delete the one before."""
        if self.newest is not None:
            self.newest.unlink(missing_ok=True)
        self.newest = path

    def close(self) -> None:
        """Delete everything."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _check(self, name: str, tensor: Tensor) -> None:
        if ".lora_" in name or ".base_layer." in name:
            do = "merge the adapters into the weights: merged_weights(model)"
            raise InvalidInput(sentence("new weights", "be the model's own", name, where=_WHERE, do=do))
        if name not in self._known:
            raise unknown_name("weight", name, self._known, where=_WHERE)
        if self._known[name] != tensor.shape:
            rule, do = f"have shape {list(self._known[name])}", "send the weights of the same architecture"
            raise InvalidInput(sentence(name, rule, list(tensor.shape), where=_WHERE, do=do))

    def _place(self, size: int) -> Path:
        """Return the folder, in memory where there is room for two files. Raises: InvalidInput: the disk is full."""
        if self._folder is None:
            places = [place for place in (_IN_MEMORY, Path(tempfile.gettempdir())) if place.is_dir()]
            roomy = [place for place in places if shutil.disk_usage(place).free > 2 * size]
            if not roomy:
                do = "free some, or set TMPDIR to a larger disk"
                must = f"have {2 * size} bytes free for weights"
                raise InvalidInput(sentence("temporary folder", must, str(places[-1]), where=_WHERE, do=do))
            self._folder = tempfile.TemporaryDirectory(prefix="envgym-weights-", dir=roomy[0])
        return Path(self._folder.name)
