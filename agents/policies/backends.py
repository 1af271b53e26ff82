"""Which engine samples, and what it may use: settings, and the engines built from them; nothing heavy until then."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from envgym.settings import Settings

if TYPE_CHECKING:
    from envgym.agents.policies.vllm import VllmPolicy


class PolicySettings(Settings):
    """The sampling engine."""

    backend: Literal["transformers", "vllm"] = "transformers"
    """`transformers` samples from the model in this process; `vllm` in a process and from a copy of its own,
    or in an evaluation through an endpoint from a model that vLLM serves there."""
    cache_gib: float = Field(default=2.0, gt=0)
    """vllm: memory for keys and values."""
    max_context: int | None = Field(default=None, ge=2)
    """vllm: longest context with what is sampled behind it; the default is what the model has positions for."""
    restarts: int = Field(default=3, ge=0)
    """vllm: how many times in a row the engine may die, without one answer in between, and is started again."""


def start_vllm(
    settings: PolicySettings, source: str, *, dtype: str, head_dtype: str, max_batch: int, threads: int | None
) -> "VllmPolicy":
    """Start vLLM on a directory or hub name. Raises: SettingsError, InvalidInput: as `VllmPolicy`."""
    from envgym.agents.policies.vllm import VllmPolicy  # heavy

    return VllmPolicy(
        source,
        dtype=dtype,
        head_dtype=head_dtype,
        max_context=settings.max_context,
        max_batch=max_batch,
        cache_gib=settings.cache_gib,
        threads=threads,
        restarts=settings.restarts,
    )
