"""How the ranks of a run begin: rank 0 leads with the run's settings, and the others follow."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from envgym import __version__
from envgym.agents.models.loading import prepare_device
from envgym.agents.policies.backends import autocast_dtype
from envgym.errors import RunError, SettingsError
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.ranks.group import RankGroup
from envgym.trainer.learner.ranks.learner import RankCalls, RankLearner
from envgym.trainer.learner.ranks.meeting import Meeting
from envgym.trainer.method import build_method
from envgym.trainer.models.policy_model import load_model
from envgym.trainer.sections import CriticSettings
from envgym.trainer.settings import TrainSettings, train_settings


class _Beginning(NamedTuple):
    """The first that rank 0 tells the others."""

    settings: dict[str, Any]
    """Of the run, as JSON."""
    has_critic: bool
    """Whether a value head on the policy's body learns with it."""
    version: str = __version__
    """Of this package, on rank 0."""


@contextmanager
def joined(settings: TrainSettings, meeting: Meeting) -> Iterator[RankCalls]:
    """Lead the ranks of a run for a block, as rank 0. Raises: RunError: the others do not come, or one is gone."""
    device = prepare_device(settings.engine.device, settings.engine.threads)
    group = RankGroup(_of_rank(device, meeting), meeting, deadline_s=settings.launch.rank_timeout_s)
    calls = RankCalls(group)
    try:
        yield calls
        calls.end()
    finally:
        group.close()


def lead(
    calls: RankCalls, settings: TrainSettings, whole: nn.Module, *, has_critic: bool, rates: list[str]
) -> RankLearner:
    """Return the learner of a run, as rank 0, whose weights are on every rank those of `whole`."""
    calls.group.tell(_Beginning(settings.model_dump(mode="json"), has_critic))
    model = copy.deepcopy(whole).to(calls.group.device)
    learner = _learner_of(calls, settings, model, whole=whole, has_critic=has_critic, rates=rates)
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
        build_method(settings)  # knows the classes of the user's files, of which objectives are made
        torch.manual_seed(settings.run.seed)
        model, _ = load_model(settings.model, group.device, None)
        _learner_of(calls, settings, model, whole=None, has_critic=beginning.has_critic, rates=[])
        calls.follow()
    finally:
        group.close()


def _learner_of(
    calls: RankCalls,
    settings: TrainSettings,
    model: nn.Module,
    *,
    whole: nn.Module | None,
    has_critic: bool,
    rates: list[str],
) -> RankLearner:
    device, chosen = calls.group.device, settings.critic or CriticSettings()
    return RankLearner(
        model,
        calls,
        whole=whole,
        optim=settings.optim,
        num_steps=settings.run.steps,
        device=device,
        autocast=autocast_dtype(settings.model),
        critic=Critic(model, chosen, settings.optim, device=device) if has_critic else None,
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
