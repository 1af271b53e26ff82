"""What a plan models: settings beyond that are refused, and parts of a run that it leaves out are named."""

import logging
from collections.abc import Sequence
from typing import Final

from envgym.agents.settings import MEMORY_SHARE
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, SettingsError
from envgym.trainer.learner.objective import Objective
from envgym.trainer.planning.memory import learner_memory, sampler_memory
from envgym.trainer.planning.shapes import model_shape
from envgym.trainer.planning.workload import Workload
from envgym.trainer.settings import TrainSettings

_log = logging.getLogger(__name__)

_MODELLED: Final = ("transformers", "vllm")


def check_modelled(settings: TrainSettings, workload: Workload) -> None:
    """Check that a plan has formulas for the settings, and that their agent can play episodes of this length.

    Raises: SettingsError: it has none, or the agent cannot.
    """
    engine, launch, agent = settings.engine, settings.launch, settings.agent
    backend, where = engine.backend.name, "envgym plan"
    do = "plan with launch.servers in place of servers or endpoints of your own"
    SettingsError.unless(backend in _MODELLED, "engine.backend", "be transformers or vllm", backend, where=where, do=do)
    do = "plan with launch.launcher=local"
    SettingsError.unless(
        launch.launcher != "static", "launch.launcher", "start processes", "static", where=where, do=do
    )
    must, do = "be files, nccl or gloo: servers of ipc use the GPUs of the ranks", "plan with another"
    SettingsError.unless(launch.transport != "ipc", "launch.transport", must, "ipc", where=where, do=do)
    share, do = engine.vllm.get(MEMORY_SHARE), "plan with engine.cache_gib"
    SettingsError.unless(share is None, f"engine.vllm.{MEMORY_SHARE}", "be left out", share, where=where, do=do)
    longest, do = agent.max_turn_tokens, "lower --turn-tokens, or raise agent.max_turn_tokens"
    must = f"be at most agent.max_turn_tokens, which is {longest}"
    num_tokens = workload.turn_tokens
    SettingsError.unless(num_tokens <= longest, "tokens of a turn", must, num_tokens, where=where, do=do)
    longest, num_tokens = agent.max_context_tokens, workload.context
    must = f"be at most agent.max_context_tokens, which is {longest}"
    do = "lower --turns, --prompt-tokens, --turn-tokens or --reply-tokens, or raise agent.max_context_tokens"
    SettingsError.unless(num_tokens <= longest, "tokens of an episode", must, num_tokens, where=where, do=do)


def not_counted(settings: TrainSettings, *, has_critic: bool) -> list[str]:
    """Return the parts of a run that take time or memory and that a plan leaves out.

    Args:
        settings: of the run.
        has_critic: whether the run's credit trains a critic.
    """
    parts = ["critic"] if has_critic else []
    parts += [f"models.{name}" for name in settings.models]
    parts += [f"controller {choice.name}" for choice in settings.controllers]
    parts += [f"search {settings.search.name}"] if settings.search.name != "chain" else []
    sections = ("allocator", "replay", "sft", "demonstrations")
    parts += [name for name in sections if getattr(settings, name) is not None]
    parts += ["evaluation.every"] if settings.evaluation.every else []
    return parts


def planned_memory(
    settings: TrainSettings, objective: Objective, device_type: str, trees: Sequence[Tree]
) -> dict[str, int]:
    """Return the bytes of the tensors on each kind of device of a run whose episodes are as long as these chains.

    `in turns` is the device of a colocated engine while the engine samples; `learner` is the same device while the
    learner trains. A run that a plan has no formulas for has no entries: a search, or a model of another kind. A
    warning is logged for the settings or the model that have none.
    """
    if settings.search.name != "chain" or not trees:
        return {}
    workload = Workload.of(trees)
    settings = settings.model_copy(update={"model": settings.model.on(device_type)})
    has_reference = settings.objective.kl_coef > 0
    try:
        check_modelled(settings, workload)
        shape = model_shape(
            settings.model, settings.optim, size=None, has_reference=has_reference, device_type=device_type
        )
    except InvalidInput as error:  # also a SettingsError
        _log.warning("the planned memory of each device is left out: %s", error)
        return {}
    learner = learner_memory(settings, workload, shape, None, is_coupled=objective.is_coupled)
    memory = {"learner": sum(learner.values())}
    sampler = sampler_memory(settings, workload, shape, None)
    if sampler:
        memory["policy server" if settings.launch.servers else "in turns"] = sum(sampler.values())
    return memory
