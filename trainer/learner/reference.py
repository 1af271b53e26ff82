"""The reference model of the KL term: the policy as it was when reinforcement learning began, frozen.

It is kept in the run directory, so that a resumed run has the same one.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from envgym.agents.models.head import widen_head
from envgym.trainer.learner.causal_lm import lm_head_of
from envgym.trainer.learner.checkpoint import save_model

_ADAPTER = "reference"
"""Name of the frozen adapter beside the one that trains."""

OpenReference = Callable[[], AbstractContextManager[nn.Module]]
"""Opens the frozen model for as long as it is scored with."""


def keep_reference(model: Any, folder: Path) -> None:  # PreTrainedModel or PeftModel
    """Write the model as it is now, unless a reference is there already."""
    if not folder.exists():
        save_model(model, folder)


def open_reference(model: Any, folder: Path, device: torch.device) -> OpenReference:  # as above
    """Load what `keep_reference` wrote: a second adapter where the model has adapters, else a second model."""
    if hasattr(model, "peft_config"):
        return _second_adapter(model, folder)
    frozen = type(model).from_pretrained(folder, dtype=model.dtype)
    if lm_head_of(model).is_float32:
        widen_head(frozen)
    frozen.to(device).eval().requires_grad_(False)

    @contextmanager
    def second_model() -> Iterator[nn.Module]:
        yield frozen

    return second_model


def _second_adapter(model: Any, folder: Path) -> OpenReference:  # PeftModel
    if _ADAPTER not in model.peft_config:
        model.load_adapter(str(folder), adapter_name=_ADAPTER, is_trainable=False)

    @contextmanager
    def second_adapter() -> Iterator[nn.Module]:
        trained = model.active_adapter
        model.set_adapter(_ADAPTER)
        try:
            yield model
        finally:
            model.set_adapter(trained)

    return second_adapter
