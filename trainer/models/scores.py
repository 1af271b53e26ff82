"""Scores from the models of a run: the policy as it is now, and frozen models of this process."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from envgym.errors import SettingsError, check_known
from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from envgym.trainer.methods.scores import POLICY_MODEL, Quantity, ScoreRequest
from envgym.trainer.models.frozen import FrozenModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringModels:
    """Computes scores of rows, those of all models in the packs of one pass; call it where the weights stand still."""

    learner: Learner
    models: Mapping[str, Model]
    temperature: float
    """That the rows were sampled at."""
    critic: Learner | None = None
    """Of a critic with weights of its own; None: the values are those of the learner's."""

    def __call__(
        self, rows: Sequence[TrainRow], quantities: Mapping[str, Collection[Quantity]]
    ) -> dict[tuple[str, Quantity], list[list[float]]]:
        """Return each quantity of each model: one number per token of each row."""
        batches = self.learner.micro_batches(rows, range(len(rows)))
        values: dict[tuple[str, Quantity], torch.Tensor] = {}
        for name, requested in quantities.items():
            if "values" in requested:
                critic = self.learner if self.critic is None else self.critic
                values[name, "values"] = critic.compute_values(rows, self._dealt(critic.forward, rows, batches))
            if "entropies" in requested:
                scored = self._token_logprobs(name, rows, batches)
                assert scored.entropies_BT is not None, "it computes them"
                values[name, "logprobs"], values[name, "entropies"] = scored.logprobs_BT, scored.entropies_BT
            elif "logprobs" in requested:
                values[name, "logprobs"] = self._logprobs(name, rows, batches)
        return {key: _unpadded(values_NT, rows) for key, values_NT in values.items()}

    def _token_logprobs(self, name: str, rows: Sequence[TrainRow], batches: Sequence[MicroBatch]) -> TokenLogprobs:
        if name == POLICY_MODEL:
            return self.learner.compute_token_logprobs(rows, batches, self.temperature)
        with self._frozen(name) as of_model:
            return of_model.token_logprobs(rows, self._dealt(of_model, rows, batches), self.temperature)

    def _logprobs(self, name: str, rows: Sequence[TrainRow], batches: Sequence[MicroBatch]) -> torch.Tensor:
        if name == POLICY_MODEL:
            return self.learner.compute_logprobs(rows, self.temperature, batches)
        with self._frozen(name) as of_model:
            return of_model.logprobs(rows, self._dealt(of_model, rows, batches), self.temperature)

    def _dealt(
        self, of_model: ForwardPass, rows: Sequence[TrainRow], batches: Sequence[MicroBatch]
    ) -> Sequence[MicroBatch]:
        """Return the policy's micro-batches; a model that cannot compute packs, or alone can, deals the rows itself."""
        same = of_model.packs == self.learner.forward.packs
        return batches if same else of_model.micro_batches(rows, range(len(rows)))

    @contextmanager
    def _frozen(self, name: str) -> Iterator[ForwardPass]:
        model = self.models[name]
        assert isinstance(model, FrozenModel), "checked before the run began"
        with model.open() as module:
            yield model.forward_pass(module)


def _unpadded(values_NT: torch.Tensor, rows: Sequence[TrainRow]) -> list[list[float]]:
    return [values[: len(row)] for row, values in zip(rows, values_NT.tolist(), strict=True)]


def check_score_names(requests: Sequence[ScoreRequest], names: Collection[str]) -> None:
    """See that every score is of a model of the run. Raises: UnknownName: near names are listed."""
    for request in requests:
        available, remedy = {POLICY_MODEL, REFERENCE, *names}, f"add models.{request.model} to the settings"
        check_known("model", request.model, available, where=f"score {request.name}", remedy=remedy)


def check_score_models(requests: Sequence[ScoreRequest], models: Mapping[str, Model]) -> None:
    """See that every score is of a model that has its weights here. Raises: SettingsError: one is served."""
    for request in requests:
        model = models.get(request.model)
        if request.model != POLICY_MODEL and not isinstance(model, FrozenModel):
            do, must = "make it local or snapshot", "be a frozen model of this process to be scored with"
            got, where = "none" if model is None else type(model).__name__, f"score {request.name}"
            raise SettingsError.of(f"model {request.model}", must, got, where=where, do=do)
