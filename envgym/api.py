"""The functions at the top of the package: train, evaluate, play an episode.

Here programs are put together from environments, agents and trainer, as on the command line. `import envgym` loads this
module when one of its functions is first used.
"""

import operator
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import gymnasium

from envgym.agents.evaluation.play import message_player
from envgym.agents.evaluation.run import EvalResult, PolicyHolder, Progress, open_player, run_evaluation
from envgym.agents.policies.scripted import FunctionPolicy, ReplyFunction
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import Chain
from envgym.agents.settings import EvalSettings, EvaluationSettings
from envgym.config.settings import build_settings
from envgym.core.tasks import Split
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.errors import SettingsError, UnknownName, check_known
from envgym.registry import id_of, make
from envgym.runs.directory import RunDirectory, file_step
from envgym.runtime.event_loop import run_coroutine
from envgym.runtime.processes.interrupts import describe_saved, describe_saved_episodes, interrupts_noted
from envgym.runtime.progress import ProgressDisplay
from envgym.seeds import read_seed
from envgym.wrappers.base import AnyEnv, Wrapper

if TYPE_CHECKING:
    from envgym.agents.rollout.messages import MessagePolicy
    from envgym.trainer.metrics.callbacks import Callback
    from envgym.trainer.settings import TrainSettings
    from envgym.trainer.train import TrainResult

# Of tqdm, which transformers loads: in a notebook it would ask for widgets, which `ProgressDisplay` does not need.
warnings.filterwarnings("ignore", message="IProgress not found")

AnyPath = str | PathLike[str]
EnvId = str | Callable[..., object]
"""An id, or a class or function that makes the env."""
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
_LIMITS = ("thinking", "max_turn_tokens", "max_context_tokens", "on_length")
"""Settings of a run's agent that another agent takes over."""


def train(
    settings: "TrainSettings | Mapping[str, Any] | AnyPath",
    *,
    overrides: Sequence[str] = (),
    callbacks: "Sequence[Callback] | None" = None,
    resume: bool = False,
) -> "TrainResult":
    """Train an agent and write a run directory; also inside a running event loop, as in a notebook.

    Args:
        settings: a YAML file, its content as a mapping, or the settings of a run; with `resume` also a run directory.
        overrides: replaced settings, each as `optim.lr=1e-4`.
        callbacks: called as it goes on; None: the trackers that `run.trackers` names.
        resume: go on from the newest checkpoint of the run directory.

    Raises: SettingsError, UnknownName, RunError: bad settings or directory; nothing has been written then.
    """
    started = time.perf_counter()
    from envgym.trainer.metrics.trackers.guard import build_trackers
    from envgym.trainer.settings import load_train_settings
    from envgym.trainer.train import train as run_training  # torch is heavy

    run_settings = load_train_settings(settings, overrides, resume=resume)
    trackers = build_trackers(run_settings.run.trackers) if callbacks is None else callbacks
    with interrupts_noted(
        partial(describe_saved, run_settings.run.path, f"envgym.train({str(run_settings.run.path)!r}, resume=True)")
    ):
        return run_training(run_settings, callbacks=trackers, resume=resume, started=started)


def evaluate(
    model: AnyPath,
    env: "EnvId | Mapping[str, Any] | Sequence[EnvId | Mapping[str, Any]]" = (),
    *,
    tasks: int = 100,
    samples: int = 1,
    temperature: float | None = None,
    split: str = "test",
    seed: int = 0,
    agent: Mapping[str, Any] = NO_SETTINGS,
    engine: Mapping[str, Any] = NO_SETTINGS,
    evaluation: Mapping[str, Any] = NO_SETTINGS,
    directory: AnyPath | None = None,
    resume: bool = False,
    on_progress: Progress | None = None,
) -> EvalResult:
    """Measure a model on held-out tasks and write a run directory; also inside a running event loop.

    Args:
        model: `tiny`, `smollm2`, a model directory, a hub name, a training run, or one of its checkpoints.
        env: one or several: ids or classes, or mappings with `id` and `settings`; none: those of the run.
        tasks: distinct tasks per env.
        samples: episodes per task.
        temperature: 0 is greedy; None: 0 for one sample, 1 for several.
        split: `test` or `train`.
        seed: of the envs and of sampling.
        agent: settings of the agent, as in YAML; what is left out is that of the run.
        engine: settings of what samples, as in YAML.
        evaluation: further settings of the evaluation, as in YAML.
        directory: written to; None: `runs/eval-MODEL-ENV`, with what differs from a default evaluation after it.
        resume: go on with the directory, whose settings must be these; `tasks` and `samples` may be raised.
        on_progress: called with (phase, done, total) as episodes end; None: a progress display.

    Raises: SettingsError, UnknownName, RunError: bad settings or directory; nothing has been written then.
    """
    started = time.perf_counter()
    envs = env if isinstance(env, Sequence) and not isinstance(env, str) else [env]
    if temperature is None:
        temperature = float(samples > 1)
    arguments = {
        "tasks": tasks,
        "samples": samples,
        "temperature": temperature,
        "split": Split.parse(split, where="split"),
    }
    settings = eval_settings(
        model,
        [item if isinstance(item, Mapping) else {"id": item} for item in envs],
        run={"directory": None if directory is None else str(directory), "seed": seed},
        agent=agent,
        engine=engine,
        evaluation={**arguments, **evaluation},
        where="evaluate",
    )
    with ExitStack() as stack:
        how = "the same call and resume=True"
        stack.enter_context(interrupts_noted(partial(describe_saved_episodes, settings.run.path, how)))
        show = stack.enter_context(ProgressDisplay()) if on_progress is None else on_progress
        return run_evaluation(settings, resume=resume, on_progress=show, started=started)


def play_episode(
    env: EnvId | AnyEnv,
    policy: "AnyPath | MessagePolicy | ReplyFunction",
    *,
    split: str = "test",
    index: int = 0,
    seed: int = 0,
    temperature: float = 0.0,
    agent: Mapping[str, Any] = NO_SETTINGS,
) -> Trajectory:
    """Let an agent play one episode, and return it; also inside a running event loop.

    Args:
        env: an id or a class, which is made and closed, or an env, which stays open.
        policy: what answers: a function from the messages to the reply, a policy of messages (such as `OpenAIPolicy`),
            or a model as `evaluate` takes it, which is loaded anew for each call.
        split: of the task, `test` or `train`.
        index: number of the task in its split.
        seed: of the env and of sampling.
        temperature: 0 is greedy.
        agent: settings of the agent, as in YAML. A function gets the tools described in its first message and writes
            calls as text (`text_format: hermes`) unless they say otherwise.

    Raises: SettingsError, UnknownName, InvalidInput: no such env, task, model or agent.
    """
    instance = env if isinstance(env, gymnasium.Env) else make(id_of(env))
    task = instance.unwrapped.tasks.task(Split.parse(split, where="split"), operator.index(index))
    seed = read_seed(seed, where="play_episode")
    job = EpisodeJob(
        make_env=lambda: _LeftOpen(instance),  # type: ignore[arg-type,return-value]  # wrappers forward the whole contract
        task=task,
        seed=seed,
        tree_id=task.id,
        env_id=instance.name,
    )
    sampling: Mapping[str, Any] = {"temperature": temperature}
    answering: MessagePolicy | None = None
    model: AnyPath = "a policy that is given"
    if isinstance(policy, str | PathLike):
        model = policy
    elif callable(policy):
        answering, agent = FunctionPolicy(policy), {"text_format": "hermes", **agent}
    else:
        answering = policy
    settings = eval_settings(model, [{"id": instance.name}], agent=agent, evaluation=sampling, where="play_episode")
    try:
        return trajectories(run_coroutine(_play(job, settings, answering)))[0]
    finally:
        if instance is not env:
            instance.close()


class _LeftOpen(Wrapper):
    def close(self) -> None:
        """Leave it open."""


async def _play(job: EpisodeJob, settings: EvalSettings, policy: "MessagePolicy | None") -> Tree:
    async with AsyncExitStack() as stack:
        if policy is None:
            policies = stack.enter_context(closing(PolicyHolder()))
            play = await open_player(settings, Chain(), policies, stack)
        else:
            await stack.enter_async_context(policy)
            play = message_player(settings.agent, policy, Chain(), settings.evaluation, concurrency=1)
        (tree,) = await play([job], lambda tree: None)
    return tree


# ---- settings --------------------------------------------------------------------------------------------------------


def eval_settings(
    model: AnyPath,
    envs: Sequence[Mapping[str, Any]],
    *,
    run: Mapping[str, Any] = NO_SETTINGS,
    numbers: Mapping[str, Any] = NO_SETTINGS,
    agent: Mapping[str, Any] = NO_SETTINGS,
    engine: Mapping[str, Any] = NO_SETTINGS,
    evaluation: Mapping[str, Any] = NO_SETTINGS,
    trusted: bool = False,
    where: str,
    sources: Mapping[str, str] = NO_SETTINGS,
) -> EvalSettings:
    """Return the settings of an evaluation; what is left out is that of the run that `model` names, if it does.

    Args:
        model: a name, a directory, a training run, or one of its checkpoints.
        envs: each with `id`, or the name of an env of the run, and `settings`; without `id`, and where there are none:
            all of the run.
        run: further settings of the section `run`.
        numbers: further settings of the section `model`.
        agent: settings of the section `agent`; another name leaves the run's limits in place.
        engine: settings of the section `engine`; with an endpoint no run is looked for.
        evaluation: settings of the section `evaluation`.
        trusted: enter the run into the list of the user's own first.
        where: what asks, for messages.
        sources: as for `build_settings`.

    Raises: SettingsError, UnknownName, RunError: settings, or a run, that cannot be used.
    """
    source = {} if engine.get("endpoint") else trained_model(Path(model), trusted=trusted)
    env_sections = _chosen_envs(envs, source.get("envs", []), where=where)
    name = f"eval-{_slug(source.get('name', str(model)))}-{'-'.join(_slug(env['id']) for env in env_sections[:3])}"
    success_at = {"success_at": source["success_at"]} if "success_at" in source else {}
    data = {
        "run": {"name": name, **run},
        "model": {**source.get("model", {"name": str(model)}), **numbers},
        "engine": engine,
        "agent": _chosen_agent(agent, source.get("agent", {})),
        "envs": env_sections,
        "evaluation": {**success_at, **evaluation},
    }
    settings = build_settings(EvalSettings, data, where=where, sources=sources)
    name = "-".join([settings.run.name, *_differences(settings.evaluation, settings.run.seed)])
    return settings.model_copy(update={"run": settings.run.model_copy(update={"name": name})})


def _differences(evaluation: EvaluationSettings, seed: int) -> list[str]:
    """Return the differences from a default evaluation, as parts of its directory's name."""
    search = evaluation.search.name
    samples_differ = evaluation.samples > 1 or search != "chain"
    parts = {
        str(evaluation.split): evaluation.split is not Split.TEST,
        _slug(search): search != "chain",
        f"{evaluation.samples}-samples": evaluation.samples > 1,
        f"temperature-{evaluation.temperature:g}": evaluation.temperature != float(samples_differ),
        f"seed-{seed}": seed != 0,
    }
    return [part for part, differs in parts.items() if differs]


def trained_model(path: Path, *, trusted: bool = False) -> dict[str, Any]:
    """Return a training run's model, agent, envs and threshold of success; {} where `path` is in no run.

    Args:
        path: a run, for its newest checkpoint, or one of its checkpoints.
        trusted: enter the run into the list of the user's own first.

    Raises: RunError, UnknownName: a run that cannot be read, or without that checkpoint.
    """
    inside = next((p for p in (path, path.parent) if p.parent.name == "checkpoints"), path / "checkpoints" / "newest")
    directory = inside.parent.parent
    if not (directory / "run.json").is_file():
        return {}
    from envgym.trainer.learner.checkpoint import checkpoints, load_state, require_checkpoint  # torch is heavy
    from envgym.trainer.settings import settings_of_run

    trained = RunDirectory.open(directory, trusted=trusted)
    if inside.name != "newest":
        saved = [item.name for item in checkpoints(trained.checkpoints)]
        is_older = inside.name not in saved and inside.name < max(saved, default="")
        if is_older and file_step(inside) % trained.config["run"]["checkpoint_every"] == 0:
            keep = trained.config["run"]["keep_checkpoints"]
            got, do = f"{inside.name}, deleted as run.keep_checkpoints is {keep}", f"name {' or '.join(saved)}"
            raise UnknownName.of("checkpoint", "be one that the run has kept", got, where=str(path), do=do)
        check_known("checkpoint", inside.name, saved, where=str(path))
    checkpoint = require_checkpoint(directory) if inside.name == "newest" else inside
    config = settings_of_run(trained, "model", "agent", "envs")
    steps = load_state(checkpoint).step
    weights = str(checkpoint / "model")
    model: dict[str, Any] = config.model.model_dump(include={"precision", "head_dtype"})
    model["train_steps"] = steps
    if config.model.lora is None:
        model["name"] = weights
    else:
        model |= {"name": config.model.name, "tiny": config.model.tiny.model_dump(), "adapter": weights}
    return {
        "name": f"{trained.name}-step-{steps}",
        "model": model,
        "agent": config.agent.model_dump(mode="json"),
        "envs": [env.model_dump(mode="json", exclude={"weight"}) for env in config.envs],
        "success_at": config.evaluation.success_at,
    }


def _chosen_agent(agent: Mapping[str, Any], of_run: Mapping[str, Any]) -> dict[str, Any]:
    is_other = agent.get("name", of_run.get("name")) != of_run.get("name")
    return _laid_over({key: of_run[key] for key in _LIMITS if key in of_run} if is_other else of_run, agent)


def _chosen_envs(
    envs: Sequence[Mapping[str, Any]], of_run: Sequence[Mapping[str, Any]], *, where: str
) -> list[dict[str, Any]]:
    """Return the envs that are named, with the run's settings where they are of the run; or all of the run's."""
    sections: list[dict[str, Any]] = []
    for env in [{**item, "id": id_of(item["id"])} if "id" in item else item for item in envs] or [{}]:
        named = [item for item in of_run if env.get("id") in (None, item["id"], item["name"])]
        if not named and "id" not in env:
            do = "name an environment; `envgym list` shows them"
            raise SettingsError.of("--env", "be given", "nothing", where=where, do=do)
        sections += [_laid_over(item, {**env, "id": item["id"]}) for item in named] or [dict(env)]
    return sections


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over` in place, section by section."""
    both = {
        key: _laid_over(base[key], over[key]) for key in base.keys() & over.keys() if _are_sections(base, over, key)
    }
    return {**base, **over, **both}


def _are_sections(base: Mapping[str, Any], over: Mapping[str, Any], key: str) -> bool:
    return isinstance(base[key], Mapping) and isinstance(over[key], Mapping)


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text.strip("/").removeprefix("./")).strip("_.") or "model"
