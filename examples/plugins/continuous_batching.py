"""A policy backend: what samples. This one serves requests as they come, with the engine of transformers.

    envgym train run.yaml --set engine.backend.name=examples/plugins/continuous_batching.py:ContinuousBackend
    envgym eval --model runs/first --backend examples/plugins/continuous_batching.py:ContinuousBackend

A backend is called with the model and engine sections and returns a `Policy`, which says by its attributes what it can
do (`shares_weights`, `accepts_weights`). Its own settings, here `engine.backend.max_batch`, are its arguments.
"""

from typing import Any

from envgym.agents.models.loading import load_frozen_model, prepare_device
from envgym.agents.policies.backends import autocast_dtype
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import Policy
from envgym.agents.settings import EngineSettings, ModelSettings


class ContinuousBackend:
    """Let requests join a running batch; the setting `max_batch` replaces that of the engine."""

    def __init__(self, max_batch: int | None = None) -> None:
        """Choose the batch; None: that of the engine's settings."""
        self.max_batch = max_batch

    def __call__(
        self, model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
    ) -> Policy:
        """Sample from the learner's own module, or from a model that is loaded here."""
        device = prepare_device(engine.device, engine.threads)
        model = model.on(device.type)
        return TransformersPolicy(
            load_frozen_model(model, device) if learner_model is None else learner_model,
            device=device,
            max_batch=self.max_batch or engine.max_batch,
            deterministic=False,
            autocast=None if learner_model is None else autocast_dtype(model),
            shares_weights=learner_model is not None,
            version=model.train_steps,
        )
