"""The way to reasoning-gym, which runs in helper processes (`_reasoning_worker` says why)."""

import importlib.util
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from envgym.core.json_types import JsonObject
from envgym.errors import EnvFailure, InvalidInput
from envgym.verifiers.base import Verdict, wrong
from envgym.verifiers.processes import Worker, WorkerDied, WorkerHung, WorkerPool

MAX_PROCESSES = 2
MAKE_SECONDS = 300.0
"""An item that takes longer to make is a failure of the env; the slowest generators need ten on an idle machine."""
SCORE_CPU_SECONDS = 10
"""An answer that keeps the scorer busy longer scores 0."""
_WALL_FACTOR = 12.0
"""Real seconds allowed per CPU second, so that a busy machine does not make a right answer wrong."""


class GeneratorFailed(EnvFailure):
    """The process serves, but the generator or its scorer raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedItem:
    question: str
    answer: str | None
    """As the generator gives it; None where only the scorer knows what is right."""
    solution: str | None
    """An answer that scores 1, None where there is none: no answer is given, or it is wrong."""
    ends_with_answer: bool
    """Whether the last part of the question scores 1 as an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemGenerator:
    dataset: str
    config: str
    """JSON of the settings, seed and size included."""

    def check(self) -> None:
        """Make the generator. Raises: InvalidInput: it refuses its settings. EnvFailure: no process serves."""
        try:
            _ask("check", dataset=self.dataset, config=self.config)
        except GeneratorFailed as error:
            got, do = f"{self.config}: {error}", "correct the value"
            raise InvalidInput.of("config", f"suit {self.dataset}", got, where="reasoning_gym", do=do) from error

    def item(self, index: int) -> GeneratedItem:
        """Make item number `index`. Raises: EnvFailure: the generator failed."""
        return GeneratedItem(**_ask("item", dataset=self.dataset, config=self.config, index=index))

    def score(self, index: int, answer: str) -> Verdict:
        """Judge `answer` by the data set's own scorer.

        Raises: EnvFailure: the scorer failed, and not because of this answer.
        """
        try:
            reply = _use(
                MAKE_SECONDS + SCORE_CPU_SECONDS * _WALL_FACTOR,
                {
                    "op": "score",
                    "dataset": self.dataset,
                    "config": self.config,
                    "index": index,
                    "answer": answer,
                    "cpu_s": SCORE_CPU_SECONDS,
                },
            )
        except WorkerDied as death:
            if death.returncode == -signal.SIGXCPU:
                return wrong(f"the scorer needed more than {SCORE_CPU_SECONDS} s for this answer")
            raise EnvFailure(f"reasoning-gym: {death}") from None
        if "unreadable" in reply:
            return wrong(f"the scorer cannot read this answer: {reply['unreadable']}")
        score = float(reply["score"])
        if math.isnan(score):
            return wrong("the scorer gave NaN")
        return Verdict(score=min(max(score, 0.0), 1.0), reason=f"the scorer of {self.dataset} gave {score:g}")


def dataset_names() -> Sequence[str]:
    """Return the names of the generators. Raises: InvalidInput: reasoning-gym is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        got, where, do = "no such package", "puzzles/reasoning_gym-v0", "pip install 'envgym[puzzles]'"
        raise InvalidInput.of("reasoning-gym", "be installed", got, where=where, do=do)
    return _names()


@cache
def _names() -> Sequence[str]:
    return tuple(_ask("names"))


@cache
def config_keys(dataset: str) -> Sequence[str]:
    """Return the names of the settings of a generator."""
    return tuple(_ask("keys", dataset=dataset))


def _ask(op: str, **arguments: str | int) -> Any:  # Any: decoded JSON
    try:
        return _use(MAKE_SECONDS, {"op": op, **arguments})
    except WorkerDied as death:
        raise EnvFailure(f"reasoning-gym: {death}") from None


def _use(seconds: float, request: JsonObject) -> Any:  # Any: decoded JSON
    """Ask a worker process. Raises: EnvFailure: it failed, or did not answer twice. WorkerDied: twice, or SIGXCPU."""

    def job(worker: Worker) -> Mapping[str, Any]:  # Any: decoded JSON
        worker.send(request)
        return worker.receive(seconds)

    try:
        reply = _pool().use(job)
    except (WorkerDied, WorkerHung) as loss:
        if isinstance(loss, WorkerDied) and loss.returncode == -signal.SIGXCPU:
            raise
        reply = _again(job)  # a process may be lost for reasons of its own; twice is no accident
    if "error" in reply:
        raise GeneratorFailed(str(reply["error"]))
    return reply["result"]


def _again(job: Callable[[Worker], Mapping[str, Any]]) -> Mapping[str, Any]:  # Any: decoded JSON
    try:
        return _pool().use(job)
    except WorkerHung as hang:
        raise EnvFailure(f"reasoning-gym: {hang}") from None


@cache
def _pool() -> WorkerPool:
    return WorkerPool("envgym.envs.puzzles._reasoning_worker", min(MAX_PROCESSES, os.cpu_count() or 1))
