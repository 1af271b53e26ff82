"""The model of a run without its weights: its shape, and the memory that training and sampling hold."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from envgym.agents.models.loading import resolve_model
from envgym.agents.settings import ModelSettings
from envgym.errors import InvalidInput, check_known
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.planning.constants import shapes

if TYPE_CHECKING:
    from envgym.trainer.learner.memory import MicroBatchMemory, StateMemory

_PROBE_HEAD_DIM: Final = 8
"""Width of a head in the model that is probed."""
_PROBE_LAYERS: Final = (1, 3)
_PROBE_VOCABULARY: Final = 512
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Settings of configurations with experts, of which a token uses some."""

_INSTEAD: Final = "plan a dense model of the kind of Llama or Qwen2.5, such as --size 7B, in its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model that decide what it costs."""

    config: Any  # PretrainedConfig
    layers: int
    body: int
    """Parameters of the layers."""
    head: int
    """Parameters of the output layer."""
    outside: int
    """Parameters outside of the layers: embeddings, a head that is not tied to them, and the last norm."""
    width: int
    """Of all attention heads together."""
    cached: int
    """Numbers that the cache holds for each token."""
    state: "StateMemory"
    """Bytes of weights, gradients and optimizer, where one process learns."""
    sharded_reference: int = 0
    """Bytes of weights that ranks hold together in addition: their reference is the whole model, also with adapters."""
    adapters: int = 0
    """Bytes of the adapters that train; 0: all weights train."""
    weights: int
    """Bytes of the weights that are sampled from."""
    micro_batch: "MicroBatchMemory"
    """Bytes of forward and backward passes."""

    @property
    def parameters(self) -> int:
        """Parameters that a token is multiplied with."""
        return self.body + self.head

    @property
    def sent(self) -> int:
        """Bytes that an update of a policy server moves."""
        return self.adapters or self.weights

    def state_of(self, num_ranks: int) -> "StateMemory":
        """Return the bytes of weights, gradients and optimizer of all ranks together."""
        added = self.sharded_reference if num_ranks > 1 else 0
        return replace(self.state, weights=self.state.weights + added)


def model_shape(
    settings: ModelSettings, optim: OptimSettings, *, size: str | None, has_reference: bool, device_type: str = "cuda"
) -> ModelShape:
    """Return the shape of the model of a run, or of one of the sizes of Qwen2.5 in its place.

    Args:
        settings: of the model; its precision is not `auto`.
        optim: names the optimizer.
        size: such as `7B`; None: the model that the settings name.
        has_reference: whether a copy is kept for a KL term.
        device_type: `cuda` or `cpu`, which decides how many logits exist at a time.

    Raises: UnknownName, InvalidInput: there is no such size or model, its configuration cannot be read, or the formulas
        do not hold for it.
    """
    import torch

    from envgym.trainer.learner.memory import state_memory
    from envgym.trainer.models.policy_model import add_adapters

    config = _config(settings, size)
    _check_dense(config)
    with torch.device("meta"):
        model = _made(config).to(getattr(torch, settings.dtype))
    body = sum(item.numel() for name, item in model.named_parameters() if ".layers." in name)
    what, do = "decoder layers of the model", "plan without it, or pass --size"
    InvalidInput.unless(body, what, "be named layers", "none", where=type(model).__name__, do=do)
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = add_adapters(model, settings.lora) if settings.lora is not None else model
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    state = state_memory(trained, optim, reference=has_reference)
    has_adapters = settings.lora is not None
    return ModelShape(
        config=config,
        layers=config.num_hidden_layers,
        body=body,
        head=config.hidden_size * config.vocab_size,
        width=heads * head_dim,
        cached=2 * config.num_hidden_layers * config.num_key_value_heads * head_dim,
        outside=total - body,
        state=state,
        sharded_reference=getattr(torch, settings.dtype).itemsize * total if has_adapters and has_reference else 0,
        adapters=state.gradients if has_adapters else 0,
        weights=getattr(torch, settings.sampler_dtype).itemsize * total,
        micro_batch=_micro_batch_memory(
            settings, config, _casts(settings, config, body, trained), head_dim, device_type
        ),
    )


def _config(settings: ModelSettings, size: str | None) -> Any:  # PretrainedConfig
    from transformers import AutoConfig, Qwen2Config

    if size is not None:
        check_known("size", size, shapes(), where="--size")
        return Qwen2Config(max_position_embeddings=32_768, **shapes()[size])
    source = resolve_model(settings.name, tiny=settings.tiny)
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config()
    except Exception as error:  # of transformers and of the Hub, which differ between versions
        got, do = str(error).partition("\n")[0], f"pass --size with one of {', '.join(shapes())}"
        raise InvalidInput.of("model.name", "have a readable configuration", got, where=source, do=do) from error


def _check_dense(config: Any) -> None:  # PretrainedConfig
    """Check that the formulas hold for a model. Raises: InvalidInput: its layers are of another kind."""
    experts = [name for name in _EXPERTS if getattr(config, name, None)]
    got = experts[0] if experts else None if getattr(config, "num_key_value_heads", None) else "no num_key_value_heads"
    must = "have num_key_value_heads and no experts"
    InvalidInput.unless(got is None, "configuration of a model", must, got, where=config.model_type, do=_INSTEAD)


def _casts(settings: ModelSettings, config: Any, body: int, trained: Any) -> int:  # PretrainedConfig, a model
    """Return the bytes of casts of weights; with checkpointing, those of frozen weights are of one layer at a time."""
    if settings.precision != "mixed":
        return 0
    if settings.lora is None:
        return 2 * body
    of_adapters: int = 2 * sum(parameter.numel() for parameter in trained.parameters() if parameter.requires_grad)
    num_parts: int = config.num_hidden_layers if settings.gradient_checkpointing else 1
    return of_adapters + 2 * body // num_parts


def _made(config: Any) -> Any:  # a model of transformers
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config)


def _micro_batch_memory(
    settings: ModelSettings, config: Any, casts: int, head_dim: int, device_type: str
) -> "MicroBatchMemory":  # config: PretrainedConfig
    """Measure narrow models of few layers with the same heads, and carry their bytes over to the real sizes.

    What a layer keeps for a token is proportional to its widths, all of which are smaller by the same factor.

    Raises: InvalidInput: the narrow models cannot be built or run.
    """
    import torch

    from envgym.trainer.learner.memory import MicroBatchMemory, head_memory

    try:
        few, more = (_probed(settings, config, head_dim, num_layers) for num_layers in _PROBE_LAYERS)
    except Exception as error:  # of transformers, which differ between kinds of models
        what, must = "model of a plan", f"build and run with heads of width {_PROBE_HEAD_DIM}"
        got, where = str(error).partition("\n")[0] or type(error).__name__, config.model_type
        raise InvalidInput.of(what, must, got, where=where, do=_INSTEAD) from error
    factor, num_few, num_more = head_dim / _PROBE_HEAD_DIM, *_PROBE_LAYERS
    of_layer = (more.per_token - few.per_token) / (num_more - num_few)
    return MicroBatchMemory(
        per_token=factor * (few.per_token + of_layer * (config.num_hidden_layers - num_few)),
        per_token_in_layer=factor * more.per_token_in_layer,
        head=head_memory(
            torch.device(device_type),
            config.vocab_size,
            config.hidden_size,
            is_trained=settings.lora is None,
            is_cast=settings.precision == "mixed",
        ),
        casts=casts,
    )


def _probed(settings: ModelSettings, config: Any, head_dim: int, num_layers: int) -> "MicroBatchMemory":  # as above
    import torch

    from envgym.agents.policies.backends import autocast_dtype
    from envgym.trainer.learner.forward import ForwardPass
    from envgym.trainer.learner.memory import micro_batch_memory
    from envgym.trainer.models.policy_model import add_adapters

    narrow, factor = deepcopy(config), head_dim / _PROBE_HEAD_DIM
    narrow.head_dim = _PROBE_HEAD_DIM
    narrow.hidden_size = round(config.hidden_size / factor)
    narrow.intermediate_size = round(config.intermediate_size / factor)
    narrow.num_hidden_layers, narrow.vocab_size = num_layers, _PROBE_VOCABULARY
    narrow.pad_token_id = narrow.bos_token_id = narrow.eos_token_id = None
    if getattr(narrow, "layer_types", None):
        narrow.layer_types = narrow.layer_types[:num_layers]
    with torch.random.fork_rng(devices=[]):
        model = _made(narrow).to(getattr(torch, settings.dtype))
        model = model if settings.lora is None else add_adapters(model, settings.lora)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    device, autocast = torch.device("cpu"), autocast_dtype(settings)
    return micro_batch_memory(ForwardPass(model, OptimSettings(packing=False), device=device, autocast=autocast))
