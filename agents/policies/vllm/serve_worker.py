"""What runs in vLLM's worker: the engine that puts a run's weights in place, and the digests of those that are there.

vLLM imports this module by the name that `--worker-extension-cls` gives, which makes the engine `envgym` known to it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from vllm.distributed.parallel_state import get_tp_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from envgym.agents.policies.vllm.worker import renew_head  # it also ends this process with its owner
from envgym.agents.policies.weights.adapted_base import AdaptedBase, read_changes
from envgym.agents.policies.weights.collective import GroupAddress, WeightGroup
from envgym.agents.policies.weights.shared_memory import read_shared
from envgym.agents.policies.weights.weight_store import StoredWeights
from envgym.errors import InvalidInput

BACKEND: Final = "envgym"
"""Of `--weight-transfer-config`."""
_WHERE: Final = "vLLM's worker"
_PROBES: Final = 512
"""Rows of the identity that pass through a kernel at a time."""


@dataclass
class GroupInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not installed everywhere
    """Where a process group meets; files need none. Fields as of `GroupAddress`."""

    host: str
    port: int
    backend: str
    timeout_s: float
    rank: int
    world_size: int


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # as above
    """What `/update_weights` is told."""

    directory: str | None = None
    """Of one version, as `WeightStore` writes it."""
    from_group: bool = False
    """The weights come over the group."""
    shared: dict[str, Any] | None = None
    """Memory that the run shares, as `SharedWeights.describe` names it."""
    has_base: bool = False
    """The tensors are the matrices of adapters on the base that is served."""


class RunWeights(WeightTransferEngine):  # type: ignore[misc]  # as above
    """Loads a version by the model's own `load_weights`, which fuses and lays out what its kernels want fused."""

    init_info_cls = GroupInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: nn.Module) -> None:
        """Take the model. Raises: InvalidInput: it is split by layers, quantized, or cannot be joined."""
        super().__init__(config, vllm_config, device, model)
        parallel, quantization = vllm_config.parallel_config, vllm_config.model_config.quantization
        is_split_by_heads = parallel.world_size == parallel.tensor_parallel_size
        must, do = "be split by heads only", "set engine.tensor_parallel, and leave out what splits or quantizes it"
        InvalidInput.unless(is_split_by_heads, "model", must, parallel.world_size, where=_WHERE, do=do)
        InvalidInput.unless(quantization is None, "model", "not be quantized", quantization, where=_WHERE, do=do)
        if parallel.tensor_parallel_size > 1:
            check_joinable(model)
        self._group: WeightGroup | None = None
        """With the run; None: there is none, or another worker of this engine has it."""
        self._has_group = False
        self.base = AdaptedBase()
        """Of weights that have adapters added."""

    def init_transfer_engine(self, init_info: GroupInfo) -> None:
        """Meet the run, by the first worker. Raises: RuntimeError: it is not there. InvalidInput: no such way."""
        self.shutdown()
        if get_tp_group().is_first_rank:
            try:
                self._group = WeightGroup(GroupAddress(**asdict(init_info)), self.device)
            finally:
                get_tp_group().broadcast_object(self._group is not None)
            self._has_group = True
        else:
            self._has_group = get_tp_group().broadcast_object()

    def start_weight_update(self) -> None:
        """Wait for the weights, as an update of adapters may have to read the base that is in use."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load weights; what the base class adds, a wait for the accelerator, fails where there is none."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load a version. Raises: InvalidInput: it is none, or its weights are others than the model's."""
        try:
            self._receive_version(update_info)
        except Exception:
            self.shutdown()  # or other servers of the group wait for this one
            raise

    def _receive_version(self, update_info: UpdateInfo) -> None:
        names, tensors, where = self._open(update_info)
        if update_info.has_base:
            self._receive_adapters(tensors, where)
            return
        live, received = live_names(self.model, is_tied=self._is_tied), set[str]()
        if names is not None:
            check_names(live, names, where=where)
        self.base.clear()
        self._load(_noting(tensors, received))
        check_names(live, received, where=where)

    def _open(self, update_info: UpdateInfo) -> tuple[Set[str] | None, Iterable[tuple[str, Tensor]], str]:
        """Return the names of the tensors, if they are known before they are read; the tensors; and where they are."""
        if update_info.shared is not None:
            return None, read_shared(update_info.shared), "shared memory"
        if update_info.from_group and self._has_group:
            described = self._receive_description()
            return {name for name, _ in described}, self._receive(described), "process group"
        directory = update_info.directory
        if directory is None:
            do = "name a directory, or open a group with /init_weight_transfer_engine"
            raise InvalidInput.of("update_info", "say where the weights are", update_info, where=_WHERE, do=do)
        stored = StoredWeights.read(Path(directory))
        return stored.digests.keys(), stored.tensors(), directory

    def _receive_adapters(self, tensors: Iterable[tuple[str, Tensor]], where: str) -> None:
        """Load the base with the matrices of adapters added; layers take all of their weights or none."""
        with torch.no_grad():
            if not self.base.shapes:
                self.base.keep(live_weights(self.model, is_tied=self._is_tied))
            self.base.change(read_changes(tensors, self.base.shapes, where=where))
            self._load(self.base.merged(self.device))

    def _load(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        self.model.load_weights(named_tensors)

    def _receive_description(self) -> list[tuple[str, Tensor]]:
        """Return the tensors that the run will send, without data; the first worker tells the others.

        Raises: as `WeightGroup.receive_description`; RuntimeError: the first worker received none.
        """
        described: list[tuple[str, Tensor]] | None = None
        try:
            if self._group is not None:
                described = self._group.receive_description()
        finally:  # the other workers wait for it
            described = get_tp_group().broadcast_object(described)
        if described is None:
            raise RuntimeError("the first worker of this engine received no description of the weights")
        return described

    def _receive(self, described: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the run sends; the first worker sends them to the others."""
        if get_tp_group().world_size == 1 and self._group is not None:
            yield from self._group.receive(described)
            return
        named_tensors = described if self._group is None else self._group.receive(described)
        for name, tensor in named_tensors:
            received = torch.empty_like(tensor, device=self.device) if self._group is None else tensor.to(self.device)
            yield name, get_tp_group().broadcast(received)

    def finish_weight_update(self) -> None:
        """Lay out what was loaded as the kernels want it."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self._is_tied:
            renew_head(self.model)

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
        self._has_group = False

    @property
    def _is_tied(self) -> bool:
        return is_tied(self.model_config)


class LiveDigests:
    """Mixed into vLLM's worker."""

    model_runner: Any
    """vLLM's, whose interface is only known there."""
    weight_transfer_engine: RunWeights

    def compute_live_digests(self) -> dict[str, str]:
        """Return the digest of every weight that is in use, by its name in a checkpoint.

        Several workers join their parts of each weight; then the first one returns the digests, and the others none.
        """
        config = self.model_runner.model_config
        with torch.inference_mode():
            named = (
                (name, tensor.to(config.dtype))
                for name, tensor in live_weights(self.model_runner.get_model(), is_tied=is_tied(config))
            )
            if not get_tp_group().is_first_rank:
                deque(named, maxlen=0)  # every worker takes part in joining
                return {}
            return self.weight_transfer_engine.base.compute_digests(named)


def is_tied(model_config: Any) -> bool:  # vLLM's ModelConfig
    """Return whether the head is the embedding's twin, which a checkpoint does not name."""
    return bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))


def _noting(named_tensors: Iterable[tuple[str, Tensor]], names: set[str]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in named_tensors:
        names.add(name)
        yield name, tensor


def check_names(live: Set[str], stored: Set[str], *, where: str) -> None:
    """Compare names of weights. Raises: InvalidInput: some are not the model's, or are kept under other names."""
    if live != stored:
        first = min(live ^ stored)
        do = "send every weight, with adapters merged; where vLLM keeps them in another form, use engine.backend=vllm"
        must = f"be the {len(live)} that vLLM holds"
        raise InvalidInput.of("new weights", must, f"{len(stored)}, of which {first} differs", where=where, do=do)


def check_joinable(model: nn.Module) -> None:
    """Check that the parts of a split model can be joined to the weights of its checkpoint.

    Raises: InvalidInput: the checkpoint itself fuses weights, whose parts the workers have in another order.
    """
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for name, layer in model.named_modules():
        is_fused = isinstance(layer, QKVParallelLinear | MergedColumnParallelLinear)
        if is_fused and len(fused.get(name.rpartition(".")[2], ())) < 2:
            must, do = "keep fused weights apart in its checkpoint to be split", "set engine.tensor_parallel=1"
            raise InvalidInput.of("model", must, name, where=_WHERE, do=do)


def live_names(model: nn.Module, *, is_tied: bool) -> set[str]:
    """Return the names that the weights of a model have in a checkpoint."""
    return {
        name
        for layer_name, layer in model.named_modules()
        if not (is_tied and isinstance(layer, ParallelLMHead))
        for parameter_name, _ in layer.named_parameters(recurse=False)
        for name in _split_names(model, layer_name, layer, parameter_name)
    }


def live_weights(model: nn.Module, *, is_tied: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that are in use, whole, by their names in a checkpoint.

    Fused layers are split, and the parts of several workers are joined, one weight at a time. What a kernel keeps in a
    layout of its own, as on a CPU, is read by sending the identity through it: every product but one is a zero, so the
    weights come out bit for bit, but for the sign of a zero.
    """
    head: Tensor | None = None
    embedding: tuple[str, Tensor] | None = None
    for layer_name, layer in model.named_modules():
        for parameter_name, parameter in layer.named_parameters(recurse=False):
            tensor = parameter.detach()
            has_kernel = isinstance(layer, LinearBase | ParallelLMHead) and hasattr(layer, "cpu_linear")
            if parameter_name == "weight" and has_kernel:
                tensor = _through_kernel(layer, dtype=parameter.dtype)
            names = _split_names(model, layer_name, layer, parameter_name)
            parts = tensor.split(layer.output_partition_sizes) if len(names) > 1 else (tensor,)
            whole = [_joined(layer, part, number) for number, part in enumerate(parts)]
            if is_tied and isinstance(layer, ParallelLMHead):
                (head,) = whole
            elif is_tied and isinstance(layer, VocabParallelEmbedding):
                embedding = names[0], whole[0]
            else:
                yield from zip(names, whole, strict=True)
    if embedding is not None:
        name, tensor = embedding
        yield name, tensor if head is None or torch.equal(head, tensor) else head  # so that the difference shows


def _joined(layer: nn.Module, part: Tensor, number: int) -> Tensor:
    """Return a weight, or one of those fused into a layer, from the parts that the workers of an engine have.

    Args:
        layer: that has the weight.
        part: of this worker.
        number: of the weight among those fused.
    """
    group = get_tp_group()
    if isinstance(layer, VocabParallelEmbedding):
        padded: Tensor = group.all_gather(part.contiguous(), 0)
        return padded[: layer.org_vocab_size]
    if group.world_size == 1 or getattr(layer, "tp_size", 1) == 1:
        return part
    is_by_rows = isinstance(layer, RowParallelLinear)
    if (is_by_rows and part.ndim == 1) or not (is_by_rows or isinstance(layer, ColumnParallelLinear)):
        return part
    joined: Tensor = group.all_gather(part.contiguous(), int(is_by_rows))
    if isinstance(layer, QKVParallelLinear) and number > 0:  # several workers have the same heads of keys and values
        joined = torch.cat(joined.chunk(group.world_size)[:: layer.num_kv_head_replicas])
    return joined


def _split_names(model: nn.Module, layer_name: str, layer: nn.Module, parameter_name: str) -> list[str]:
    """Return the names in a checkpoint of what a layer has fused into one parameter."""
    parent, _, own = layer_name.rpartition(".")
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    parts = fused.get(own, [own]) if isinstance(layer, LinearBase) else [own]
    return [".".join(filter(None, (parent, part, parameter_name))) for part in parts]


def _through_kernel(layer: Any, *, dtype: torch.dtype) -> Tensor:  # a LinearBase or a ParallelLMHead
    """Return the weight [out, in] that a layer's kernel computes with."""
    size: int = layer.input_size_per_partition if isinstance(layer, LinearBase) else layer.embedding_dim
    identity = torch.eye(size, dtype=dtype)
    rows = [layer.quant_method.apply(layer, part, None) for part in identity.split(_PROBES)]
    return torch.cat(rows).T


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, RunWeights)
