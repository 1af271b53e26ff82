"""The model of a run without its weights: its shape, and the memory that training and sampling hold."""

from copy import deepcopy
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model that decide what it costs."""

    config: Any  # PretrainedConfig
    layers: int
    body: int
    """Parameters of the layers."""
    head: int
    """Parameters of the output layer."""
    width: int
    """Of all attention heads together."""
    cached: int
    """Numbers that the cache holds for each token."""
    state: "StateMemory"
    """Bytes of weights, gradients and optimizer, on one rank."""
    weights: int
    """Bytes of the weights that are sampled from."""
    micro_batch: "MicroBatchMemory"
    """Bytes of forward and backward passes."""

    @property
    def parameters(self) -> int:
        """Parameters that a token is multiplied with."""
        return self.body + self.head


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

    Raises: UnknownName, InvalidInput: there is no such size or model, or its configuration cannot be read.
    """
    import torch

    from envgym.trainer.learner.memory import state_memory
    from envgym.trainer.models.policy_model import add_adapters

    config = _config(settings, size)
    with torch.device("meta"):
        model = _made(config).to(getattr(torch, settings.dtype))
    body = sum(item.numel() for name, item in model.named_parameters() if ".layers." in name)
    itemsize = getattr(torch, settings.sampler_dtype).itemsize
    weights = itemsize * sum(parameter.numel() for parameter in model.parameters())
    trained = add_adapters(model, settings.lora) if settings.lora is not None else model
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return ModelShape(
        config=config,
        layers=config.num_hidden_layers,
        body=body,
        head=config.hidden_size * config.vocab_size,
        width=heads * head_dim,
        cached=2 * config.num_hidden_layers * config.num_key_value_heads * head_dim,
        state=state_memory(trained, optim, reference=has_reference),
        weights=weights,
        micro_batch=_micro_batch_memory(settings, config, body, head_dim, device_type),
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


def _made(config: Any) -> Any:  # a model of transformers
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config)


def _micro_batch_memory(
    settings: ModelSettings, config: Any, body: int, head_dim: int, device_type: str
) -> "MicroBatchMemory":  # config: PretrainedConfig
    """Measure narrow models of few layers with the same heads, and carry their bytes over to the real sizes.

    What a layer keeps for a token is proportional to its widths, all of which are smaller by the same factor.
    """
    import torch

    from envgym.trainer.learner.memory import MicroBatchMemory, head_memory

    few, more = (_probed(settings, config, head_dim, num_layers) for num_layers in _PROBE_LAYERS)
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
        casts=2 * body if settings.precision == "mixed" else 0,
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
