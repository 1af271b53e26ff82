"""From a model's name to a server of it."""

from pathlib import Path
from typing import Any

from envgym.agents.models.loading import load, load_adapter, load_tokenizer, prepare_device, resolve_model
from envgym.agents.policies.serving.identity import tokenizer_digest
from envgym.agents.policies.serving.served_weights import load_weights
from envgym.agents.policies.serving.server import PolicyServer
from envgym.agents.policies.serving.weight_store import WeightStore
from envgym.agents.policies.transformers import TransformersPolicy


def load_server(
    model: str,
    *,
    adapter: str | None = None,
    tokenizer: str | None = None,
    weights: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    threads: int | None = None,
    max_batch: int = 64,
    token: str | None = None,
) -> PolicyServer:
    """Load a model and make a server of it, which is yet to be started.

    Args:
        model: name or directory.
        adapter: directory of a LoRA adapter, which is merged.
        tokenizer: name or directory; None: at the model.
        weights: directory of a run's weights, of which the newest are taken.
        dtype: of the weights.
        device: `cpu`, `cuda` or `auto`.
        threads: of torch; None: its own choice.
        max_batch: requests that are sampled at a time.
        token: as for `PolicyServer`.

    Raises: UnknownName, InvalidInput: no such model, or weights that are not the model's.
    """
    home = prepare_device(device, threads)
    module: Any = load(model, dtype=dtype, device=str(home)).model
    if adapter is not None:
        module = load_adapter(module, adapter).merge_and_unload()
    version = 0
    newest = None if weights is None else WeightStore(Path(weights)).newest()
    if newest is not None:
        load_weights(module, newest)
        version = newest.version
    policy = TransformersPolicy(module, max_batch=max_batch, deterministic=False, version=version)
    digest = tokenizer_digest(load_tokenizer(resolve_model(tokenizer or model)))
    return PolicyServer(policy, module, model=model, tokenizer_digest=digest, token=token)
