"""The learner of several ranks: what rank 0 does with it, the others do, too.

Rank 0 runs the loop. Every rank, rank 0 as well, has a shard of the model; weights that are sent or saved are gathered
layer by layer. Rank 0 has the whole model of the run, too, until `release_whole`: to sample from it, or for models that
read it. A method that takes all ranks is announced by rank 0 with its arguments and then runs everywhere.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from envgym.agents.models.weights import AdaptedWeights, merged_weights, rounded, widen_head
from envgym.errors import EnvgymError
from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.causal_lm import causal_lm, lm_head_of
from envgym.trainer.learner.checkpoint import SHARDS, OpenReference, load_critic, load_optimizer, save_critic
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.learner import Learner, NotFinite, Pause
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.ranks.group import RankGroup, lost_ranks_told
from envgym.trainer.learner.ranks.model_files import ModelWriter
from envgym.trainer.learner.ranks.optimizer_state import save_shards
from envgym.trainer.learner.ranks.sharded import (
    RankedProcesses,
    drop_data,
    gather_layers,
    gather_weights,
    reshard,
    scatter_weights,
    shard_frozen,
    whole_tensor,
)
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.learner.train_step import SamplesCheck
from envgym.trainer.methods.corrections import CorrectionStats
from envgym.trainer.metrics.update import Metrics

_SAID_S: Final = 3.0
"""From an error of a rank until it ends."""
_END: Final = None
"""What rank 0 tells the others when there is nothing left to do."""


class _Call(NamedTuple):
    learner: int
    optim: OptimSettings
    """The learner's settings of now."""
    method: str
    args: tuple[Any, ...]
    keywords: dict[str, Any]


class RankCalls:
    """The learners of a group, and how their methods run on every rank."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self._learners: dict[int, RankLearner] = {}
        self._num_learners = 0
        self._depth = 0
        self.is_broken = False
        """Whether rank 0 has left a method in which others may still wait for it: nothing reaches them any more."""
        self._lock = threading.RLock()

    def add(self, learner: "RankLearner") -> int:
        """Take up a learner; return its number, which is the same on every rank."""
        number = self._num_learners
        self._learners[number] = learner
        self._num_learners += 1
        return number

    def drop(self, number: int) -> None:
        """Forget a learner."""
        del self._learners[number]

    @property
    def is_within(self) -> bool:
        """Whether a method is running that all ranks run."""
        return self._depth > 0

    @contextmanager
    def together(self, learner: "RankLearner", method: str, *args: object, **keywords: object) -> Iterator[None]:
        """Let every rank run a method, whose body is the block. Raises: RunError: a rank is gone."""
        with self._lock, lost_ranks_told():
            if self.group.is_first and not self._depth:
                self.group.tell(_Call(learner.number, learner.optim, method, args, keywords))
            self._depth += 1
            try:
                yield
            except NotFinite:  # as on every rank
                raise
            except BaseException:
                self.is_broken = True
                raise
            finally:
                self._depth -= 1

    def end(self) -> None:
        """Tell the other ranks that there is nothing left to do."""
        with self._lock, lost_ranks_told():
            if not self.is_broken:
                self.group.tell(_END)

    def follow(self) -> None:
        """Run what rank 0 announces, until it ends. Raises: RunError: a rank is gone, or this one has no memory."""
        while (call := self._hear()) is not _END:
            learner = self._learners[call.learner]
            learner.change_optim(call.optim)
            try:
                getattr(learner, call.method)(*call.args, **call.keywords)
            except NotFinite:
                continue  # every rank has found the same, and rank 0 says what becomes of it
            except EnvgymError:
                time.sleep(_SAID_S)  # should rank 0 have found the same, it says so first
                raise

    def _hear(self) -> _Call | None:
        with lost_ranks_told():
            call: _Call | None = self.group.hear()
        return call


class RankLearner(Learner):
    """One rank of a learner: rank 0 calls its methods, which run on the others, too."""

    def __init__(
        self,
        model: nn.Module,
        calls: RankCalls,
        *,
        whole: nn.Module | None,
        optim: OptimSettings,
        num_steps: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        critic: Critic | None = None,
        rates: Sequence[str] = ("optim.lr",),
    ) -> None:
        """Shard a model, and take over its trainable parameters; every rank does so in the same order.

        Args:
            model: of the architecture of the run's, on every rank.
            calls: of the group.
            whole: on rank 0 the model of the run, which has the learner's weights after every train step until
                `release_whole`; else None.
            optim: as for `Learner`.
            num_steps: as for `Learner`.
            device: of this rank.
            autocast: as for `Learner`.
            critic: as for `Learner`; every rank holds all of it.
            rates: as for `Learner`.
        """
        reshard(model)  # another learner may have run it
        super().__init__(
            model,
            optim=optim,
            num_steps=num_steps,
            device=device,
            autocast=autocast,
            critic=critic,
            rates=rates,
            processes=RankedProcesses(calls.group),
        )
        self._calls, self._whole = calls, whole
        self._updates_whole = True
        """Whether rank 0 has the model of the run, which gets the weights of every train step."""
        self._opened: OpenReference | None = None
        self.number = calls.add(self)

    # ---- as one process does them ---------------------------------------------------------------------------------

    def train_step(
        self,
        rows: Sequence[TrainRow],
        objective: Objective,
        *,
        step: int,
        check_samples: SamplesCheck | None = None,
        record: TokenRecord | None = None,
    ) -> Metrics:
        """Make the updates on all ranks, and give the model of the run the new weights; else as for `Learner`."""
        checks = None if check_samples is None else _leave_to_rank_0
        options = {"step": step, "check_samples": checks, "record": None if record is None else TokenRecord()}
        with self._calls.together(self, "train_step", rows, objective, **options):
            metrics = super().train_step(rows, objective, step=step, check_samples=check_samples, record=record)
            if self._updates_whole:
                gather_weights(self.model, self._whole, trained_only=True)
        return metrics

    @property
    def probe(self) -> ForwardPass:
        """A forward pass of the model of the run."""
        assert self._whole is not None, "rank 0 asks, before `release_whole`"
        device = next(self._whole.parameters()).device
        return ForwardPass(self._whole, self.optim, device=device, autocast=self.autocast)

    def micro_batches(self, rows: Sequence[TrainRow], indices: Sequence[int]) -> list[MicroBatch]:
        """Deal this rank's share of the chosen rows; where rank 0 asks for itself, all of them."""
        if self._calls.is_within:
            return super().micro_batches(rows, indices)
        return ForwardPass.micro_batches(self.forward, rows, indices)

    def compute_logprobs(
        self, rows: Sequence[TrainRow], temperature: float, batches: Sequence[MicroBatch] | None = None
    ) -> Float[Tensor, "N T"]:
        """Return log-probs as `Learner` does; every rank deals the rows itself."""
        del batches
        with self._calls.together(self, "compute_logprobs", rows, temperature):
            return super().compute_logprobs(rows, temperature)

    def compute_token_logprobs(
        self, rows: Sequence[TrainRow], batches: Sequence[MicroBatch], temperature: float
    ) -> TokenLogprobs:
        """Return log-probs and entropies as `Learner` does; every rank deals the rows itself."""
        with self._calls.together(self, "compute_token_logprobs", rows, (), temperature):
            return super().compute_token_logprobs(rows, self.micro_batches(rows, range(len(rows))), temperature)

    def compute_values(self, rows: Sequence[TrainRow], batches: Sequence[MicroBatch]) -> Float[Tensor, "N T"]:
        """Return values as `Learner` does; every rank deals the rows itself."""
        with self._calls.together(self, "compute_values", rows, ()):
            return super().compute_values(rows, self.micro_batches(rows, range(len(rows))))

    # ---- what the next update depends on --------------------------------------------------------------------------

    def weights(self, dtype: torch.dtype | None = None) -> Iterable[tuple[str, Tensor]]:
        """Return the weights, which all ranks gather layer by layer while rank 0 reads them; else as `Learner`."""
        if isinstance(self.model, PreTrainedModel):
            return self._gathered("weights", dtype)
        return _GatheredAdapters(self.model, partial(self._gathered, dtype=dtype))

    def gather(self, part: str, dtype: torch.dtype | None) -> None:
        """Take part in what rank 0 gathers: read it to the end, and keep nothing."""
        deque(self._gathered(part, dtype), maxlen=0)

    def _gathered(self, part: str, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        """Yield a part of the weights of all ranks: `weights`, or that of `AdaptedWeights` with this name."""
        with self._calls.together(self, "gather", part, dtype):
            reshard(self.model)
            if part == "weights":
                for layer in gather_layers(self.model):
                    yield from ((name, rounded(tensor, dtype)) for name, tensor in layer.items())
            else:
                yield from getattr(AdaptedWeights(self.model, dtype=dtype, whole=whole_tensor), part)()

    def save_model(self, folder: Path) -> None:
        """Let all ranks gather the model layer by layer, and rank 0 write it; else as `Learner`."""
        with self._calls.together(self, "save_model", folder):
            model: Any = self.model
            if hasattr(model, "peft_config"):
                layers = gather_layers(model, trained_only=True)
                adapters = {name: tensor for layer in layers for name, tensor in layer.items()}
                if self._calls.group.is_first:
                    model.save_pretrained(folder, selected_adapters=[model.active_adapter], state_dict=adapters)
                return
            writer = ModelWriter(model, folder) if self._calls.group.is_first else None
            for layer in gather_layers(model):
                if writer is not None:
                    writer.add(layer)
            if writer is not None:
                writer.add(
                    {name: value for name, value in model.state_dict().items() if not isinstance(value, DTensor)}
                )
                writer.finish()

    def save(self, folder: Path) -> None:
        """Let every rank write its part of the optimizer's state; rank 0 writes the critic."""
        with self._calls.together(self, "save", folder):
            reshard(self.model)
            save_shards(folder / SHARDS, self.model, self.optimizer)
            if self.critic is not None and self._calls.group.is_first:
                save_critic(folder, self.critic)

    def load(self, folder: Path) -> None:
        """Let every rank read its part of what any number of processes wrote."""
        with self._calls.together(self, "load", folder):
            reshard(self.model)
            load_optimizer(folder, self.model, self.optimizer)
            if self.critic is not None:
                load_critic(folder, self.critic)

    def reset_optimizer(self) -> None:
        """Begin with an optimizer without moments, on every rank."""
        with self._calls.together(self, "reset_optimizer"):
            reshard(self.model)
            super().reset_optimizer()

    def take_weights(self) -> None:
        """Give every rank its shard of the model of the run as it is now."""
        with self._calls.together(self, "take_weights"):
            source = None if self._whole is None else self._whole.named_parameters()
            scatter_weights(self.model, source, self._calls.group)

    def release_whole(self) -> None:
        """Let the model of the run have no data from now on: rank 0 keeps its shard, as the others do."""
        with self._calls.together(self, "release_whole"):
            self._updates_whole = False
            if self._whole is not None:
                drop_data(self._whole)
                self._whole = None

    def set_reference(self, reference: OpenReference | None, pause: Pause = nullcontext) -> None:
        """Give every rank its shard of what rank 0 opens, with its adapters merged where it has some."""
        if reference is None:
            with self._calls.together(self, "set_reference", None):
                self.reference = self._opened = None
        elif reference is not self._opened:
            with pause(), reference() as module:
                inner = causal_lm(module)
                self.share_reference(inner.config, inner.dtype, lm_head_of(module).is_float32, module)
            self._opened = reference

    def share_reference(
        self, config: Any, dtype: torch.dtype, is_head_float32: bool, source: nn.Module | None = None
    ) -> None:
        """Build a frozen model from its configuration, with rank 0's weights.

        Args:
            config: PretrainedConfig of the model.
            dtype: of its weights.
            is_head_float32: whether the head computes in float32.
            source: on rank 0 the whole model.
        """
        from transformers import AutoModelForCausalLM  # heavy

        with self._calls.together(self, "share_reference", config, dtype, is_head_float32):
            frozen = AutoModelForCausalLM.from_config(config, dtype=dtype)
            if is_head_float32:
                widen_head(frozen)
            shard_frozen(frozen, self._calls.group, autocast=self.autocast)
            weights = None if source is None else merged_weights(source)
            scatter_weights(frozen, weights, self._calls.group)
            self.reference = _opened(frozen)

    def close(self) -> None:
        """Drop this learner on every rank, where they can still be reached."""
        if not self._calls.is_broken:
            with self._calls.together(self, "close"):
                self._calls.drop(self.number)

    def with_optimizer(self, optim: OptimSettings, *, num_steps: int, rates: Sequence[str]) -> "RankLearner":
        """Return another learner of the same shards on every rank, without a critic."""
        with self._calls.together(self, "with_optimizer", optim, num_steps=num_steps, rates=rates):
            other = RankLearner(
                self.model,
                self._calls,
                whole=self._whole,
                optim=optim,
                num_steps=num_steps,
                device=self.device,
                autocast=self.autocast,
                rates=rates,
            )
            other._updates_whole = self._updates_whole
            return other


class _GatheredAdapters(AdaptedWeights):
    """The weights of a sharded model with adapters, on rank 0."""

    def __init__(self, model: nn.Module, gathered: Callable[[str], Iterator[tuple[str, Tensor]]]) -> None:
        super().__init__(model)
        self._gathered = gathered

    def merged(self) -> Iterator[tuple[str, Tensor]]:
        return self._gathered("merged")

    def base(self) -> Iterator[tuple[str, Tensor]]:
        return self._gathered("base")

    def adapters(self) -> Iterator[tuple[str, Tensor]]:
        return self._gathered("adapters")


def _leave_to_rank_0(stats: CorrectionStats) -> None:
    """Check no samples: rank 0 does, and ends the run if they are not of these weights."""


def _opened(frozen: nn.Module) -> OpenReference:
    @contextmanager
    def open_frozen() -> Iterator[nn.Module]:
        yield frozen

    return open_frozen
