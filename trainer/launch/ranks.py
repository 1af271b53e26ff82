"""How the ranks of a run begin: rank 0 leads with the run's settings, and the others follow."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from envgym.agents.models.loading import prepare_device
from envgym.agents.policies.backends import autocast_dtype
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.core.version import __version__
from envgym.errors import RunError, SettingsError
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.ranks.group import RankGroup
from envgym.trainer.learner.ranks.learner import RankCalls, RankLearner
from envgym.trainer.learner.ranks.meeting import Meeting
from envgym.trainer.learner.settings import CriticSettings, OptimSettings
from envgym.trainer.method import build_method
from envgym.trainer.models.policy_model import load_model
from envgym.trainer.settings import TrainRunSettings, train_settings


class LearnerSections(NamedTuple):
    """The sections by which every rank builds its learner."""

    run: TrainRunSettings
    model: ModelSettings
    optim: OptimSettings
    critic: CriticSettings | None
    """None: no value head on the policy's body learns with it."""


class _Beginning(NamedTuple):
    """The first that rank 0 tells the others."""

    settings: dict[str, Any]
    """Of the run, as JSON."""
    has_critic: bool
    """Whether a value head on the policy's body learns with it."""
    version: str = __version__
    """Of this package, on rank 0."""


@contextmanager
def joined(engine: EngineSettings, meeting: Meeting, *, timeout_s: float) -> Iterator[RankCalls]:
    """Lead the ranks of a run for a block, as rank 0.

    Args:
        engine: with the device and the threads of this process.
        meeting: where the ranks meet.
        timeout_s: seconds that a collective may take.

    Raises: RunError: the others do not come, or one is gone.
    """
    device = prepare_device(engine.device, engine.threads)
    group = RankGroup(_of_rank(device, meeting), meeting, deadline_s=timeout_s)
    calls = RankCalls(group)
    try:
        yield calls
        calls.end()
    finally:
        group.close()


def lead(
    calls: RankCalls, config: dict[str, Any], whole: nn.Module, sections: LearnerSections, *, rates: list[str]
) -> RankLearner:
    """Return the learner of a run with settings `config`, as rank 0; its weights are those of `whole` on every rank."""
    calls.group.tell(_Beginning(config, sections.critic is not None))
    learner = _learner_of(calls, sections, copy.deepcopy(whole), whole=whole, rates=rates)
    learner.take_weights()
    return learner


def follow(
    meeting: Meeting,
    *,
    device: torch.device,
    timeout_s: float,
    on_settings: Callable[[dict[str, Any]], None] = lambda data: None,
) -> None:
    """Do what rank 0 says, until the run ends.

    Args:
        meeting: who meets, and where.
        device: of this rank.
        timeout_s: seconds that a collective may take.
        on_settings: called with the run's settings before they are used.

    Raises: RunError: the others do not come, one of them is gone or has another version, or this rank has not enough
        memory.
    """
    group = RankGroup(_of_rank(device, meeting), meeting, deadline_s=timeout_s)
    try:
        calls = RankCalls(group)
        beginning: _Beginning = group.hear()
        must, do = f"be {beginning.version}, as on rank 0", "install the same version on every machine"
        RunError.unless(beginning.version == __version__, "envgym", must, __version__, where="learner rank", do=do)
        on_settings(beginning.settings)
        settings = train_settings(beginning.settings)
        build_method(settings, warns=False)  # knows the classes of the user's files, of which objectives are made
        torch.manual_seed(settings.run.seed)
        model, _ = load_model(settings.model, torch.device("cpu"), None)  # shards go to the device
        critic = (settings.critic or CriticSettings()) if beginning.has_critic else None
        sections = LearnerSections(settings.run, settings.model, settings.optim, critic)
        _learner_of(calls, sections, model, whole=None, rates=[])
        calls.follow()
    finally:
        group.close()


def _learner_of(
    calls: RankCalls, sections: LearnerSections, model: nn.Module, *, whole: nn.Module | None, rates: list[str]
) -> RankLearner:
    device, critic = calls.group.device, sections.critic
    return RankLearner(
        model,
        calls,
        whole=whole,
        optim=sections.optim,
        num_steps=sections.run.steps,
        device=device,
        autocast=autocast_dtype(sections.model),
        critic=None if critic is None else Critic(model, critic, sections.optim, device=device),
        rates=rates,
    )


def _of_rank(device: torch.device, meeting: Meeting) -> torch.device:
    """Return the device of a rank: on CUDA, where none is named, that of its number on the machine."""
    if device.type != "cuda":
        return device
    number, available = int(str(device).partition(":")[2] or meeting.local_rank), torch.cuda.device_count()
    do = "lower launch.learners, or the ranks of torchrun on this machine"
    must = f"have a GPU, of which there are {available}"
    SettingsError.unless(number < available, "every learner rank", must, f"number {number}", where="launch", do=do)
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
