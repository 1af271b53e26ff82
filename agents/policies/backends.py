"""The one factory of policies: from the model and engine sections to what samples, for every command alike."""

from typing import TYPE_CHECKING, Any, Final, Protocol

from envgym.agents.policies.serving.backend import POLICY_SERVERS, PolicyEndpoints, PolicyServers
from envgym.agents.protocols import Policy
from envgym.agents.rollout.messages import MessagePolicy
from envgym.agents.settings import EndpointSettings, EngineSettings, ModelSettings
from envgym.agents.tables import KINDS
from envgym.config.plugins import PluginKind
from envgym.errors import SettingsError

if TYPE_CHECKING:
    from torch import dtype


class PolicyBackend(Protocol):
    """Makes the policy of a run."""

    def __call__(
        self, model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
    ) -> Policy | MessagePolicy:
        """Make the policy.

        Args:
            model: what samples.
            engine: how, and on what.
            learner_model: the module (PreTrainedModel or PeftModel) that a learner trains in this process; None: no
                learner is there.
            deterministic: the run must repeat bit by bit, so that what is sampled together may not depend on timing.

        Raises: SettingsError, UnknownName, InvalidInput: settings that do not fit.
        """
        ...


POLICY_BACKEND: Final[PluginKind[PolicyBackend]] = KINDS["policy_backend"]


def build_policy(
    model: ModelSettings,
    engine: EngineSettings,
    *,
    learner_model: Any | None = None,
    deterministic: bool = True,
    endpoints: PolicyEndpoints | None = None,
) -> Policy | MessagePolicy:
    """Make the policy that `engine.backend` names (see `PolicyBackend`), or one that samples at `endpoints`."""
    if endpoints is not None:
        return server_limits(engine).connect(model, engine, endpoints)
    return POLICY_BACKEND.build(engine.backend)(model, engine, learner_model, deterministic)


def server_limits(engine: EngineSettings) -> PolicyServers:
    """Read the limits of policy servers: those of the backend, else the defaults. Raises: SettingsError: one is bad."""
    if engine.backend.name != POLICY_SERVERS:
        return PolicyServers()
    backend = POLICY_BACKEND.build(engine.backend)
    assert isinstance(backend, PolicyServers), "the table names it"
    return backend


def build_trained_policy(
    model: ModelSettings,
    engine: EngineSettings,
    *,
    learner_model: Any,
    deterministic: bool,
    endpoints: PolicyEndpoints | None = None,
) -> Policy:
    """Make a policy that can sample from what a learner trains. Raises: SettingsError: the backend's cannot."""
    policy = build_policy(model, engine, learner_model=learner_model, deterministic=deterministic, endpoints=endpoints)
    if policy.unit == "tokens" and (policy.shares_weights or policy.accepts_weights):
        return policy
    policy.close()
    do = "use transformers or vllm"
    must = "sample tokens from weights that training can change"
    raise SettingsError.of("engine.backend", must, engine.backend.name, where="engine", do=do)


def transformers_policy(
    model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
) -> Policy:
    """Sample from the learner's own module, or from a model that is loaded here."""
    from envgym.agents.models.loading import load_frozen_model, prepare_device  # heavy, as what follows
    from envgym.agents.policies.engine.policy import TransformersPolicy

    device = prepare_device(engine.device, engine.threads)
    model = model.on(device.type)
    return TransformersPolicy(
        load_frozen_model(model, device) if learner_model is None else learner_model,
        device=device,
        max_batch=engine.max_batch,
        deterministic=deterministic,
        autocast=None if learner_model is None else autocast_dtype(model),
        shares_weights=learner_model is not None,
        version=model.train_steps,
    )


def vllm_policy(model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool) -> Policy:
    """Sample with vLLM from a copy of the weights; those of a learner are sent to it later."""
    from envgym.agents.models.loading import (  # heavy, as what follows
        device_type,
        load_frozen_model,
        prepare_device,
        resolve_model,
    )
    from envgym.agents.models.weights import merged_weights
    from envgym.agents.policies.vllm.policy import VllmPolicy

    model = model.on(device_type(engine.device))
    policy = VllmPolicy(
        resolve_model(model.name, tiny=model.tiny),
        dtype=model.sampler_dtype,
        head_dtype=model.head_dtype,
        max_context=engine.max_context,
        max_batch=engine.max_batch,
        cache_gib=engine.cache_gib,
        threads=engine.threads,
        restarts=engine.restarts,
        version=model.train_steps,
        tensor_parallel=engine.tensor_parallel,
        arguments=engine.vllm,
    )
    if model.adapter is not None and learner_model is None:
        adapted = load_frozen_model(model, prepare_device(engine.device, engine.threads))
        policy.update_weights(merged_weights(adapted), model.train_steps)
    return policy


def vllm_server_policy(
    model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
) -> Policy:
    """Sample by token ids from a model that vLLM serves at the endpoint."""
    from envgym.agents.policies.vllm.server_policy import VllmServerPolicy  # loads an HTTP client

    return VllmServerPolicy(_endpoint(engine), version=model.train_steps)


def openai_policy(
    model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
) -> MessagePolicy:
    """Sample by messages from the service at the endpoint."""
    from envgym.agents.policies.openai import OpenAIPolicy  # loads an HTTP client

    return OpenAIPolicy(_endpoint(engine))


def autocast_dtype(model: ModelSettings) -> "dtype | None":
    """Return the type of the learner's matrix products if it is not the type of its weights; `on` comes first."""
    import torch  # heavy

    return None if model.dtype == model.sampler_dtype else torch.bfloat16


def _endpoint(engine: EngineSettings) -> EndpointSettings:
    if engine.endpoint is None:
        do = "add engine.endpoint.base_url and engine.endpoint.model"
        raise SettingsError.of("engine.endpoint", f"be set for {engine.backend.name}", "nothing", where="engine", do=do)
    return engine.endpoint
