"""Models that learn beside the policy: with weights, an optimizer and a part of the checkpoint of their own."""

import copy
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from torch import nn

from envgym.agents.models.loading import load, load_tokenizer, resolve_model
from envgym.agents.policies.backends import autocast_dtype
from envgym.core.trajectory import Group, Trajectory
from envgym.errors import SettingsError
from envgym.trainer.batch.rows import TrainRow, train_rows
from envgym.trainer.learner.causal_lm import without_dropout
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.methods.credit.outcome import episode_credits
from envgym.trainer.methods.protocols import Checkpointed
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.frozen import check_same_tokenizer

WEIGHTS: Final = "model"
"""The folder of the weights, in that of a learning model's state and in a checkpoint alike."""


@runtime_checkable
class TrainedModel(Checkpointed, Protocol):
    """A named model that learns from what every step has sampled."""

    def train_step(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """Learn from the groups of a step, after the policy has; return metrics, shown as `models/NAME/...`.

        Args:
            groups: as sampled and annotated, before replay and filter.
            step: train steps done before.
        """
        ...


class LearningModel(Model):
    """A causal language model with an optimizer: a copy of the policy as the run began, or one from a directory."""

    def __init__(self, context: ModelContext, *, path: str | None, optim: OptimSettings) -> None:
        """Name the model.

        Args:
            context: of the run.
            path: as `model.name`, with the policy's tokenizer; None: a copy of the policy, after its warm start.
            optim: of this model; how rows are dealt into micro-batches and computed is the run's.
        """
        of_run = context.optim
        self._context, self._path = context, path
        shared = ("micro_batch_tokens", "packing", "compile_layers")
        self._optim = optim.model_copy(update={name: getattr(of_run, name) for name in shared})
        self._learner: Learner | None = None
        self._one_at_a_time = threading.Lock()
        """Annotators ask from threads, also while it learns."""

    @property
    def learner(self) -> Learner:
        """Its learner; it takes up its first weights when it is asked for, at the latest as the run begins."""
        if self._learner is None:
            self._learner = self._learner_of(self._first_module())
        return self._learner

    def check(self) -> None:
        """See that there is such a model. Raises: InvalidInput: there is none, or its tokenizer is not the policy's."""
        context = self._context
        if self._path is not None:
            source = resolve_model(self._path, tiny=context.model_settings.tiny)
            check_same_tokenizer(load_tokenizer(source), context.tokenizer, where=f"model {self._path}")
        elif hasattr(context.model, "peft_config"):
            do = "name a directory with `path`"
            raise SettingsError.of("copy of the policy", "hold all weights", "adapters", where="models", do=do)

    def begin(self, folder: Path) -> None:
        """Take up the weights, unless a checkpoint has brought them."""
        del folder
        self._learner = self.learner

    def _first_module(self) -> nn.Module:
        if self._path is None:
            module: nn.Module = copy.deepcopy(self._context.model)
            return module.to(self._context.device)
        return self._read(self._path)

    def _read(self, path: str) -> nn.Module:
        of_run = self._context.model_settings
        device = str(self._context.device)
        loaded = load(
            path, dtype=of_run.dtype, head_dtype=of_run.head_dtype, device=device, trainable=True, tiny=of_run.tiny
        )
        return without_dropout(loaded.model)

    def _learner_of(self, module: nn.Module) -> Learner:
        context = self._context
        module.eval()
        return Learner(
            module,
            optim=self._optim,
            num_steps=context.run.steps,
            device=context.device,
            autocast=autocast_dtype(context.model_settings),
            critic=self._critic_on(module),
            rates=self._rates,
        )

    @property
    def _rates(self) -> Sequence[str]:
        """The settings of its learning rates. Default: one of the model, none of a head."""
        return (self._setting("lr"),)

    def _setting(self, key: str) -> str:
        return f"models.{self._context.name}.kind.{key}"

    def _critic_on(self, module: nn.Module) -> Critic | None:
        del module
        return None

    def save(self, folder: Path) -> None:
        """Write the model with its tokenizer, its optimizer, and the value head where there is one."""
        model: Any = self.learner.model  # a PreTrainedModel
        model.save_pretrained(folder / WEIGHTS)
        self._context.tokenizer.save_pretrained(folder / WEIGHTS)
        self.learner.save(folder)

    def load(self, folder: Path) -> None:
        self._learner = self._learner_of(self._read(str(folder / WEIGHTS)))
        self._learner.load(folder)


def sampled_rows(groups: Sequence[Group]) -> list[TrainRow]:
    """Return the rows of the groups' valid episodes, with advantages of 0."""
    credits = [credit for group in groups for credit in episode_credits(group.valid, [0.0] * len(group.valid))]
    return train_rows(credits, once=False, groups=groups)


def rows_of_episodes(episodes: Sequence[Trajectory]) -> list[TrainRow]:
    """Return the rows of some episodes, with advantages of 0; `id.episode` is the episode's place."""
    return train_rows(episode_credits(episodes, [0.0] * len(episodes)), once=False)
