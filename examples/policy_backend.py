"""A policy backend outside the package: the engine of transformers with requests served as they come.

Used by `--set "engine.backend={name: examples/policy_backend.py:ContinuousBackend, max_batch: 16}"` in training, and by
`--backend examples/policy_backend.py:ContinuousBackend` in an evaluation.
"""

from typing import Any

from envgym.agents.models.loading import load_frozen_model, prepare_device
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.agents.protocols import Policy
from envgym.agents.settings import EngineSettings, ModelSettings


class ContinuousBackend:
    """Requests join a running batch; its own setting replaces `engine.max_batch`."""

    def __init__(self, max_batch: int | None = None) -> None:
        """Choose the batch; None: that of the engine's settings."""
        self.max_batch = max_batch

    def __call__(
        self, model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
    ) -> Policy:
        """Sample from the learner's own module, or from a model that is loaded here."""
        device = prepare_device(engine.device, engine.threads)
        return TransformersPolicy(
            load_frozen_model(model, device) if learner_model is None else learner_model,
            device=device,
            max_batch=self.max_batch or engine.max_batch,
            deterministic=False,
            shares_weights=learner_model is not None,
            version=model.train_steps,
        )
