"""BOTS: tasks whose success rate, as a posterior over all tasks, is nearest to a target."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, PrivateAttr

from envgym.core.task_needs import TaskNeed
from envgym.seeds import generator
from envgym.trainer.methods.curricula.base import (
    LearningCurriculum,
    check_restored,
    finite_size,
    mean_rewards,
    metadata_number,
    number_need,
)
from envgym.trainer.methods.curricula.uniform import turns_of_step
from envgym.trainer.methods.protocols import CurriculumContext, EnvSupply, StepOutcome, TaskRequest

Floats = npt.NDArray[np.float64]


class Posterior(NamedTuple):
    """Beta distributions of the success rates of an env's tasks, [tasks] each, and how strong the policy is."""

    alpha: Floats
    beta: Floats
    strength: float | None = None
    """c: 0 where the policy does as the weak reference does, 1 as the strong; None before the first batch."""


class References(NamedTuple):
    """Success rates of two reference models, [tasks] each."""

    weak: Floats
    strong: Floats


class Bots(LearningCurriculum):
    """Choose tasks by -|target - p|, where p is drawn from each task's Beta(α, β), or its mean.

    After a batch, with observed rates on the chosen tasks C and those of a weak and a strong reference on all:

        c = (mean_C rate - mean_C weak) / (mean_C strong - mean_C weak + 1e-6), averaged over batches (0.9 of the old)
        p̃ = clip(weak + c (strong - weak), 0, 1); on C the observed rate
        α ← (1 - λ) α + λ + (1 - ρ) s + ρ m p̃,   β ← (1 - λ) β + λ + (1 - ρ) f + ρ m (1 - p̃)

    with s successes and f failures of m episodes on C, 0 elsewhere. With τ = 0 the best tasks are taken, else they are
    drawn by softmax(./τ) without replacement. With `adaptive_rho`, ρ halves when |p̃ - rate| on C is at least 0.25 in
    the mean, where p̃ is still the estimate. The mean reward of a group, within [0, 1], is its observed rate.

    Source: 2510.26374, a contributor's copy of the code, with its shipped settings. Tasks must end, and have both rates
    unless ρ is 0.
    """

    name: ClassVar[str] = "bots"
    weak: str = "weak"
    """Key of the weak reference's success rate in a task's metadata."""
    strong: str = "strong"
    """Key of the strong reference's success rate in a task's metadata."""
    target: float = Field(default=0.5, ge=0, le=1)
    """Success rate that is preferred."""
    decay: float = Field(default=0.1, ge=0, le=1)
    """λ: how fast what was observed is forgotten."""
    rho: float = Field(default=0.1, ge=0, le=1)
    """Share of what is inferred from other tasks."""
    adaptive_rho: bool = False
    """Halve `rho` while inferred and observed rates differ by 0.25 or more in the mean."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature τ of the draw; 0: the best tasks are taken."""
    sample: bool = True
    """Draw p; False: take the mean."""
    _references: dict[str, References] = PrivateAttr(default_factory=dict)
    _posteriors: dict[str, Posterior] = PrivateAttr(default_factory=dict)
    _rho: dict[str, float] = PrivateAttr(default_factory=dict)

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the success rates of both references on every task, unless nothing is inferred from them."""
        settings = {"curriculum.weak": self.weak, "curriculum.strong": self.strong} if self.rho else {}
        return [number_need(key, setting=setting) for setting, key in settings.items()]

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        """Return the groups of a train step; different tasks of an env, at most as many as it has."""
        requests: list[TaskRequest] = []
        for supply, count in zip(context.supplies, turns_of_step(context), strict=True):
            self._read(supply)
            draws = generator(context.seed, self.name, supply.name, context.step)
            indices = self._ranked(self._posteriors[supply.name], draws)[:count]
            requests += [TaskRequest(supply.name, int(index), context.group_size) for index in indices]
        return requests

    def _read(self, supply: EnvSupply) -> None:
        size = finite_size(supply, where=self.name)
        if supply.name not in self._references:
            self._references[supply.name] = self._read_references(supply, size)
        posterior = self._posteriors.setdefault(supply.name, Posterior(np.ones(size), np.ones(size)))
        check_restored(len(posterior.alpha) == size, f"number of tasks of {supply.name}", where=self.name)

    def _read_references(self, supply: EnvSupply, size: int) -> References:
        """Return the rates of both references; 0 and 1 if ρ is 0, so that c is the mean observed rate."""
        if not self.rho:
            return References(np.zeros(size), np.ones(size))
        weak, strong = (
            np.array([metadata_number(supply, index, key, where=self.name) for index in range(size)])
            for key in (self.weak, self.strong)
        )
        return References(weak, strong)

    def _ranked(self, posterior: Posterior, draws: np.random.Generator) -> npt.NDArray[np.intp]:
        alpha, beta = posterior.alpha, posterior.beta
        rates = draws.beta(alpha, beta) if self.sample else alpha / (alpha + beta)
        fitness = -np.abs(self.target - rates)
        if self.temperature:  # the order of draws without replacement by softmax: the Gumbel trick
            fitness = fitness / self.temperature + draws.gumbel(size=len(fitness))
        return np.argsort(-fitness, kind="stable")

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Update the posteriors of all tasks of the envs that were chosen from."""
        metrics: dict[str, float] = {}
        sizes = {id(request): len(group.valid) for request, group in outcome.pairs}
        observed = list(mean_rewards(outcome))
        for env in dict.fromkeys(request.env for request, _ in observed):
            own = [(request, rate) for request, rate in observed if request.env == env]
            indices = np.array([request.index for request, _ in own])
            rates = np.clip([rate for _, rate in own], 0.0, 1.0)
            counts = np.array([sizes[id(request)] for request, _ in own], dtype=float)
            rho = self._rho.get(env, self.rho)
            references = self._references[env]
            posterior, error = updated(
                self._posteriors[env], references, indices, rates, counts, decay=self.decay, rho=rho
            )
            self._posteriors[env] = posterior
            self._rho[env] = rho / 2 if self.adaptive_rho and error >= _LARGE_ERROR else rho
            metrics |= {f"strength/{env}": posterior.strength or 0.0, f"error/{env}": error, f"rho/{env}": rho}
        return metrics

    def state(self) -> dict[str, Any]:
        """Return the posteriors, and the references' rates, which are read again only for further draws."""
        return {
            env: {
                "weak": self._references[env].weak.tolist(),
                "strong": self._references[env].strong.tolist(),
                "alpha": posterior.alpha.tolist(),
                "beta": posterior.beta.tolist(),
                "strength": posterior.strength,
                "rho": self._rho.get(env, self.rho),
            }
            for env, posterior in self._posteriors.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._posteriors = {
            env: Posterior(np.array(seen["alpha"]), np.array(seen["beta"]), seen["strength"])
            for env, seen in state.items()
        }
        self._references = {
            env: References(np.array(seen["weak"]), np.array(seen["strong"]))
            for env, seen in state.items()
            if "weak" in seen  # else the next draw reads them
        }
        self._rho = {env: seen["rho"] for env, seen in state.items()}


_LARGE_ERROR = 0.25
_KEPT = 0.9
"""Share of the old c in the average over batches."""


def updated(
    posterior: Posterior,
    references: References,
    indices: npt.NDArray[np.int_],
    rates: Floats,
    counts: Floats,
    *,
    decay: float,
    rho: float,
) -> tuple[Posterior, float]:
    """Return the posterior after a batch, and the mean |p̃ - rate| on the chosen tasks.

    Args:
        posterior: of all tasks.
        references: of all tasks.
        indices: [C] indices of different tasks.
        rates: [C] their observed success rates.
        counts: [C] episodes of each; their mean is m on all tasks.
        decay: λ.
        rho: ρ.
    """
    weak, strong = references
    gap = strong[indices].mean() - weak[indices].mean()
    strength = float((rates.mean() - weak[indices].mean()) / (gap + 1e-6))
    if posterior.strength is not None:
        strength = _KEPT * posterior.strength + (1 - _KEPT) * strength
    inferred = np.clip(weak + strength * (strong - weak), 0.0, 1.0)
    error = float(np.abs(inferred[indices] - rates).mean())
    inferred[indices] = rates
    successes, failures = np.zeros_like(weak), np.zeros_like(weak)
    successes[indices], failures[indices] = counts * rates, counts * (1 - rates)
    size = counts.mean()
    alpha = (1 - decay) * posterior.alpha + decay + (1 - rho) * successes + rho * size * inferred
    beta = (1 - decay) * posterior.beta + decay + (1 - rho) * failures + rho * size * (1 - inferred)
    return Posterior(alpha, beta, strength), error
