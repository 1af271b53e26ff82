"""Attention over rows that are padded on the right, without a look at the padding.

A token attends no token after it, so padding on the right reaches no token of a row. To find that out, transformers
would read the mask of every batch, which waits for the device, and where there is padding it would build a mask of all
pairs, for which the fastest kernels of SDPA do not run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME: Final = "envgym_rows"
_is_padded_right: ContextVar[bool] = ContextVar("_is_padded_right", default=False)
"""False also where another thread samples from the model meanwhile: its masks stay what they are."""


@contextmanager
def padded_right(model: PreTrainedModel) -> Iterator[None]:
    """Have a model that runs "sdpa" take what it is given inside for causal rows with padding on the right alone."""
    before = model.config._attn_implementation
    if before != "sdpa":
        yield
        return
    AttentionInterface.register(NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(NAME, rows_mask)
    token = _is_padded_right.set(True)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _is_padded_right.reset(token)


def rows_mask(*, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:  # as transformers' own
    """State the mask that "sdpa" would use, of padded rows that of the tokens alone."""
    mask: Tensor | None = sdpa_mask(attention_mask=None if _is_padded_right.get() else attention_mask, **options)
    return mask
