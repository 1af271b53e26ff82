"""One rank's part of a learner: a shard of the model, a share of the rows, the sums of all ranks.

Every rank is given the same rows and does the same things in the same order. So all of them know the denominators, and
what differs is only whose forward passes a rank computes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain, groupby
from types import MethodType
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from envgym.trainer.batch.balance import TokenCost, balance_rows
from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.causal_lm import causal_lm
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.logprobs import TokenHiddenStates
from envgym.trainer.learner.packing.support import can_pack
from envgym.trainer.learner.processes import OneProcess
from envgym.trainer.learner.ranks.group import RankGroup
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.metrics.update import UpdateMetrics

_WITHIN: Final = "within_shards"
"""Name of the method that a sharded model gains."""


def shard(model: nn.Module, mesh: DeviceMesh, *, autocast: torch.dtype | None = None) -> None:
    """Cut a model's parameters over ranks, layer by layer, their gradients to be summed; in place.

    Args:
        model: a Hugging Face causal language model, plain or wrapped by peft, the same on every rank.
        mesh: of the ranks.
        autocast: dtype of the matrix products, in which the layers' matrices are gathered; None: that of the weights.
            Gradients are summed in float32. Norms, embeddings and head are gathered as they are, as autocast does not
            cast them, or only in the product.
    """
    inner: Any = causal_lm(model)
    if isinstance(inner, FSDPModule):  # another learner of the same model
        return
    reduce_dtype = None if autocast is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=autocast, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
    for layer in _decoder_layers(model):
        if autocast is not None and (norms := _modules_of_vectors(layer)):
            fully_shard(norms, mesh=mesh)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(inner, mesh=mesh)
    for module in _shards(inner):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sums
    # The learner runs body and head apart, so the root's parameters are gathered around both.
    setattr(inner, _WITHIN, MethodType(lambda _, work: work(), inner))
    register_fsdp_forward_method(inner, _WITHIN)


def shard_frozen(model: nn.Module, group: RankGroup, *, autocast: torch.dtype | None = None) -> None:
    """Prepare a model that does not learn for packs where it can, then shard it; arguments as for `shard`."""
    model.eval().requires_grad_(False)
    with computing_on(model, group.device):
        can_pack(model)
    shard(model, group.mesh, autocast=autocast)


def _decoder_layers(model: nn.Module) -> list[nn.Module]:
    inner: Any = causal_lm(model)
    return list(inner.get_decoder().layers)


@contextmanager
def computing_on(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Let a model compute on a device for a block; its decoder layers are there one at a time.

    The weights stay where they are and must not change in the block.
    """
    layers = _decoder_layers(model)
    of_layers = {tensor for layer in layers for tensor in _tensors(layer)}
    homes: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def move(layer: nn.Module, *_: object) -> None:
        homes[layer] = _moved(_tensors(layer), device)

    def put_back(layer: nn.Module, *_: object) -> None:
        for tensor, home in homes.pop(layer, ()):
            tensor.data = home

    def put_all_back() -> None:
        for module in list(homes):
            put_back(module)

    with ExitStack() as stack:
        stack.callback(put_all_back)
        homes[model] = _moved([tensor for tensor in _tensors(model) if tensor not in of_layers], device)
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(move).remove)
            stack.callback(layer.register_forward_hook(put_back, always_call=True).remove)
        yield


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(chain(module.parameters(), module.buffers()))


def _moved(tensors: Iterable[Tensor], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Move tensors that are elsewhere to a device; return each of these with the data that it had before."""
    homes = [(tensor, tensor.data) for tensor in tensors if tensor.device != device]
    for tensor, home in homes:
        tensor.data = home.to(device)
    return homes


def _modules_of_vectors(layer: nn.Module) -> list[nn.Module]:
    """Return the modules of a layer, such as norms, that have vectors and no matrices."""
    owned = {module: list(module.parameters(recurse=False)) for module in layer.modules()}
    return [module for module, parameters in owned.items() if parameters and all(p.ndim == 1 for p in parameters)]


def _shards(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@torch.no_grad()
def gather_layers(model: nn.Module, *, trained_only: bool = False) -> Iterator[dict[str, Tensor]]:
    """Yield the whole weights of a sharded model, a decoder layer or another parameter at a time, in order.

    Every rank must read all of them. Each is emptied before the next is gathered, so that a rank has one at a time.
    """
    reshard(model)
    layers = [f"{name}." for name, module in model.named_modules() if module in set(_decoder_layers(model))]
    parameters = model.named_parameters()
    gathered_parameters = [pair for pair in parameters if pair[1].requires_grad or not trained_only]
    for _, members in groupby(gathered_parameters, lambda pair: next(filter(pair[0].startswith, layers), pair[0])):
        layer = {name: whole_tensor(parameter) for name, parameter in members}
        yield layer
        layer.clear()  # the reader's name for it would hold it while the next is gathered


@torch.no_grad()
def whole_tensor(parameter: Tensor) -> Tensor:
    """Return the whole of a parameter, of which this rank has a shard; every rank calls it."""
    assert isinstance(parameter, DTensor), "all of it is sharded"
    whole: Tensor = parameter.full_tensor()
    return whole


def gather_weights(model: nn.Module, into: nn.Module | None, *, trained_only: bool = False) -> None:
    """Copy the whole weights of a sharded model into a plain one; every rank calls it, one with a model."""
    plain = {} if into is None else dict(into.named_parameters())
    for layer in gather_layers(model, trained_only=trained_only):
        for name in layer.keys() & plain.keys():
            plain[name].detach().copy_(layer[name])


@torch.no_grad()
def scatter_weights(model: nn.Module, source: Iterable[tuple[str, Tensor]] | None, group: RankGroup) -> None:
    """Give a sharded model the whole weights that rank 0 has, in the order of its own or with more between them.

    The other ranks pass None.
    """
    reshard(model)
    weights = None if source is None else iter(source)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor), "all of it is sharded"
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=group.device)
        if weights is not None:
            whole.copy_(next(weight for of_source, weight in weights if of_source == name))
        torch.distributed.broadcast(whole, src=0)
        parameter.to_local().copy_(as_shards(whole, parameter).to_local())


def drop_data(model: nn.Module) -> None:
    """Replace every parameter by one without data, on the device `meta`; what is tied stays tied."""
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
                module._parameters[name] = replaced.setdefault(parameter, empty)


def as_shards(whole: Tensor, parameter: DTensor) -> DTensor:
    """Return this rank's part of a tensor that every rank has, cut as a parameter of its shape is."""
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def reshard(model: nn.Module) -> None:
    """Let a model that was run have its shards as parameters again, instead of what was gathered for the run."""
    for module in _shards(model):
        module.reshard()


class RankedForwardPass(ForwardPass):
    """The forward passes of one rank's share of the rows; every rank makes as many as the one with the most."""

    def __init__(
        self,
        model: nn.Module,
        optim: OptimSettings,
        *,
        device: torch.device,
        autocast: torch.dtype | None = None,
        group: RankGroup,
    ) -> None:
        """Prepare the model for packs where it can, then shard it; arguments as for `ForwardPass`."""
        with computing_on(model, device):  # packs are tried with the attention that trains
            super().__init__(model, optim, device=device, autocast=autocast)
        self._group = group
        self._cost = token_cost(model)
        shard(model, group.mesh, autocast=autocast)

    def micro_batches(self, rows: Sequence[TrainRow], indices: Sequence[int]) -> list[MicroBatch]:
        """Deal this rank's share of the chosen rows into micro-batches; silent ones fill up."""
        token_ids, groups = [row.token_ids for row in rows], [row.id.group for row in rows]
        shares = balance_rows(token_ids, groups, indices, self._group.size, self._cost, packed=self.packs)
        batches = super().micro_batches(rows, shares.rows[self._group.rank])
        missing = self._group.max(len(batches)) - len(batches)
        return batches + [self._silent_batch(rows, indices)] * missing if missing else batches

    def _silent_batch(self, rows: Sequence[TrainRow], indices: Sequence[int]) -> MicroBatch:
        """Return the shortest row with nothing of it scored: a pass whose loss is 0, and its gradient."""
        number = min(indices, key=lambda number: len(rows[number]))
        silent = replace(rows[number], loss_mask=(False,) * len(rows[number]), other_tokens=())
        (batch,) = super().micro_batches([*rows[:number], silent, *rows[number + 1 :]], [number])
        return batch

    def hidden_states(self, batch: MicroBatch, model: nn.Module | None = None) -> TokenHiddenStates:
        """Run the body of the model, or of another that is sharded, with all of the root's parameters at hand."""
        states: list[TokenHiddenStates] = []

        def work() -> Tensor:
            states.append(super(RankedForwardPass, self).hidden_states(batch, model))
            return states[0].hidden_SD

        sharded = causal_lm(self.model if model is None else model)
        run: Callable[[Callable[[], Tensor]], Tensor] = getattr(sharded, _WITHIN)
        hidden_SD = run(work)
        return replace(states[0], hidden_SD=hidden_SD)

    def _of_all(self, numbers: Tensor) -> Tensor:
        return self._group.sum(numbers)


def token_cost(model: nn.Module) -> TokenCost:
    """Return the cost of a model's tokens, in floating-point operations."""
    config = causal_lm(model).config.get_text_config()
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return TokenCost(base=6 * num_parameters, pair=12 * config.num_hidden_layers * width)


class RankedProcesses(OneProcess):
    """This rank and the others: a learner with it shards its model, which is the same on every rank.

    Every rank calls the learner's methods alike. A critic's head is small: every rank holds all of it.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.is_first = group.is_first

    def forward_pass(
        self, model: nn.Module, optim: OptimSettings, *, device: torch.device, autocast: torch.dtype | None
    ) -> ForwardPass:
        """Shard the model, and prepare the forward passes of this rank's share of the rows."""
        return RankedForwardPass(model, optim, device=device, autocast=autocast, group=self._group)

    def read(self, losses: Sequence[Float[Tensor, ""]]) -> list[float]:
        """Return the sum of all ranks' losses."""
        total = torch.stack(list(losses)).sum() if losses else torch.zeros((), device=self._group.device)
        return [self._group.sum(total.double()).item()]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients over the ranks; one without any has 0."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._group.sum(parameter.grad)

    def clip_gradient(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Clip the norm of the gradient of all shards; return it before clipping."""
        norm = nn.utils.clip_grad_norm_(parameters, max_norm)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

    def metrics_of_all(self, metrics: UpdateMetrics) -> UpdateMetrics:
        """Return the sum of the metrics of all ranks."""
        total = UpdateMetrics()
        for of_rank in self._group.gather(metrics):
            total.extend(of_rank)
        return total

    def complete(self, record: TokenRecord) -> None:
        """Add to a record the rows that other ranks computed."""
        for of_rank in self._group.gather(record.cpu()):
            record.extend(of_rank)
