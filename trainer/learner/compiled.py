"""Decoder layers compiled by torch.compile: norms, activations and residuals become few kernels.

Attention over packs stays what it is, between the compiled halves of a layer.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from envgym.errors import InvalidInput
from envgym.trainer.learner.causal_lm import causal_lm


class CompiledLayers:
    """The compiled layers of a model, in their places within a block only: what samples from it runs its own."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """Prepare them; each kind of layer is compiled when it is first run.

        Args:
            model: a Hugging Face causal language model, plain or wrapped by peft.
            device: where it is.

        Raises: InvalidInput: on a CPU, there is no C++ compiler.
        """
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch looks for it
        is_there = device.type != "cpu" or shutil.which(compiler) is not None
        do = "install it (Debian: apt install g++), name another one in CXX, or leave optim.compile_layers out"
        InvalidInput.unless(is_there, "C++ compiler", "be installed", compiler, where="optim.compile_layers", do=do)
        layers = causal_lm(model).get_decoder().layers
        self._forwards = [(layer, torch.compile(layer.forward, dynamic=True)) for layer in layers]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model run them within the block; a backward pass that computes layers again belongs into it."""
        before = [vars(layer).get("forward") for layer, _ in self._forwards]
        for layer, forward in self._forwards:
            layer.forward = forward
        try:
            yield
        finally:
            for (layer, _), own in zip(self._forwards, before, strict=True):
                if own is None:
                    del layer.forward  # that of its class, again
                else:
                    layer.forward = own
