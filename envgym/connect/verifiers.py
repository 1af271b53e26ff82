"""A taskset of verifiers whose tasks are those of an environment, and the harness that plays them in this process.

verifiers finds both as the package `envgym_verifiers`. Its server of model calls is asked for each turn.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from pydantic import Field, JsonValue, model_validator

from envgym.authoring.openings import opening_messages, prompt_text
from envgym.connect.chat_player import ChatConversation, ChatEndpoint, EpisodeCalls, ModelRefused, play_chat
from envgym.core.json_types import canonical
from envgym.core.tasks import Split
from envgym.core.turns import ZERO, Ending, Invalid, Scored
from envgym.errors import EnvFailure, InfrastructureError, InvalidInput, ResetNeeded
from envgym.played import EpisodeResult, PlayedEpisode
from envgym.registry import maker
from envgym.serving.templates import EnvTemplate

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise InvalidInput.of(
        "verifiers", "be installed, at least 0.4", str(error), where="envgym_verifiers", do="pip install verifiers"
    ) from error

INFO: Final = "envgym"
"""Key in `trace.info` of what the episode gave."""
_WHERE: Final = "envgym_verifiers"
_NOT_BEGUN: Final = EpisodeResult(reward=ZERO, ending=None, num_turns=0)


class EnvgymTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]  # verifiers has types only where it is installed
    """The settings under `--env.taskset`."""

    env: str = ""
    """Id of the environment, as in `envgym.make`."""
    split: str = Split.TRAIN.value
    """Split that the tasks are of: train or test."""
    seed: int = Field(default=0, ge=0)
    """Added to the index of a task, this is the seed of its episodes. The rollouts of a task share it."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns until an episode is cut; None: the limit of the environment."""

    @model_validator(mode="after")
    def _check(self) -> "EnvgymTasksetConfig":
        """Make the environment once. Raises: InvalidInput: it cannot be made so, or the split is empty."""
        part = Split.parse(self.split, where=_WHERE)
        if self.env:
            try:
                size = _template_of(self).tasks.size(part)
            except InfrastructureError as error:
                raise InvalidInput(str(error)) from error
            InvalidInput.unless(size != 0, "split", "hold tasks", part.value, where=self.env, do="choose another split")
        return self


class EnvgymTaskData(vf.TaskData):  # type: ignore[misc]  # as above
    """What names one episode; it holds no answer."""

    env: str
    split: str
    index: int
    seed: int
    settings: dict[str, JsonValue]
    max_turns: int | None


class EnvgymTask(vf.Task[EnvgymTaskData, vf.State, vf.TaskConfig]):  # type: ignore[misc]  # as above
    """A task whose reward is that of the episode which `EnvgymHarness` played."""

    @property
    def key(self) -> str:
        """The id, which is unique in its taskset."""
        return str(self.data.id)

    @vf.reward  # type: ignore[untyped-decorator]  # as above
    async def episode_reward(self, trace: Any) -> float:  # a Trace of verifiers
        """Return the reward of the episode, of the turns so far if verifiers stopped it.

        Raises: EnvFailure: there is no valid reward, so that the rollout counts as failed.
        """
        info = trace.info.get(INFO, {})
        reward = info.get("reward")
        if reward is None:
            do = "play the tasks with the harness envgym_verifiers, and leave failed rollouts out"
            raise EnvFailure.of(
                "episode", "have a valid reward", info.get("error") or "none", where=str(self.data.id), do=do
            )
        return float(reward)

    @vf.metric  # type: ignore[untyped-decorator]  # as above
    async def components(self, trace: Any) -> Mapping[str, float]:  # a Trace of verifiers
        """Return the components of the reward by name."""
        components: Mapping[str, float] = trace.info.get(INFO, {}).get("components", {})
        return components


class EnvgymTaskset(vf.Taskset[EnvgymTask, EnvgymTasksetConfig]):  # type: ignore[misc]  # as above
    """The tasks of one split of an environment."""

    def __init__(self, config: EnvgymTasksetConfig) -> None:
        """Take the settings. Raises: InvalidInput: they name no environment."""
        super().__init__(config)
        do = "pass --env.taskset.env math/arithmetic-v0"
        InvalidInput.unless(config.env, "env", "be the id of an environment", "none", where=_WHERE, do=do)
        self._template = _template_of(config)
        self._split = Split.parse(config.split, where=_WHERE)
        self._size = self._template.tasks.size(self._split)
        self.INFINITE = self._size is None

    def load(self) -> Iterator[EnvgymTask]:
        """Yield the tasks in order; without end if the environment has no last one."""
        index = 0
        while self._size is None or index < self._size:
            yield EnvgymTask(self._data(index), self.config.task)
            index += 1

    def _data(self, index: int) -> EnvgymTaskData:
        config = self.config
        task = self._template.tasks.task(self._split, index)
        seed = config.seed + index
        return EnvgymTaskData(
            id=f"{config.env}/{self._split.value}/{index}/{seed}",
            name=task.id,
            prompt=prompt_text(opening_messages(task)),
            system_prompt=self._template.description["system_prompt"] or None,
            env=config.env,
            split=self._split.value,
            index=index,
            seed=seed,
            settings=config.settings,
            max_turns=config.max_turns,
        )


class EnvgymHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]  # as above
    """Plays an environment in this process; the model is asked through the endpoint of the rollout."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,  # this and the following ones are of verifiers
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Play the episode. Returns: the result of a program that succeeded.

        Raises: InvalidInput: the task is not of this taskset. EnvFailure: the reward is invalid. PolicyFailure: the
            model failed.
        """
        task = trace.task.data
        do = "use it with the taskset envgym_verifiers"
        is_own = isinstance(task, EnvgymTaskData)
        InvalidInput.unless(
            is_own, "harness", "have a task of an environment", type(task).__name__, where=_WHERE, do=do
        )
        template = _template_of(task)
        calls = EpisodeCalls(needs_thread=template.needs_thread)
        model = ChatEndpoint(endpoint, secret)
        episodes: list[PlayedEpisode] = []  # filled in the thread of the calls: one that comes too late is closed, too
        is_cut = False

        def close() -> None:
            for episode in episodes:
                episode.close()

        async with AsyncExitStack() as ends:
            ends.push_async_callback(model.close)
            ends.callback(calls.end, close)
            try:
                await calls.run(lambda: episodes.append(PlayedEpisode(template.make())))
                (episode,) = episodes
                opening = await calls.run(partial(episode.open, split=task.split, index=task.index, seed=task.seed))
                own_prompt = task.system_prompt in (None, template.description["system_prompt"])
                conversation = ChatConversation(opening, system_prompt=None if own_prompt else task.system_prompt)
                is_cut = await play_chat(episode, conversation, model, calls, model=ctx.model)
            except ModelRefused as refusal:
                is_cut = refusal.is_context_full
                if trace.stop_condition is None and not is_cut:
                    raise
            finally:
                result = _result(episodes, was_left=calls.was_left, is_cut=is_cut)
                trace.info[INFO] = _info(task, result)
        _check_valid(result, str(task.id))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def _result(episodes: Sequence[PlayedEpisode], *, was_left: bool, is_cut: bool) -> EpisodeResult:
    """Return the result of an episode that may have been stopped at any point.

    There is no reward so far where a call of the environment was under way, or no turn was played.
    """
    try:
        result = episodes[0].result() if episodes else _NOT_BEGUN
    except ResetNeeded:
        result = _NOT_BEGUN
    if result.ending is not None:
        return result
    if was_left:
        return replace(result, **_aborted("the rollout was stopped while the environment was busy"))
    if is_cut:
        return replace(result, ending=Ending.TRUNCATED_TOKENS)
    return result if result.num_turns else replace(result, **_aborted("the rollout ended before the first turn"))


def _aborted(reason: str) -> dict[str, Any]:
    """Return the fields of a result without a reward."""
    cause = Ending.ERROR_ABORTED
    return {"reward": Invalid(cause=cause, reason=reason), "ending": cause, "error": reason}


def _info(task: EnvgymTaskData, result: EpisodeResult) -> dict[str, Any]:
    """Return the record of an episode in its trace."""
    reward = result.reward if isinstance(result.reward, Scored) else None
    ending = result.ending
    return {
        "env": task.env,
        "split": task.split,
        "index": task.index,
        "seed": task.seed,
        "ending": None if ending is None else ending.value,
        "turns": result.num_turns,
        "reward": None if reward is None else reward.value,
        "components": {} if reward is None else dict(reward.components),
        "error": result.error,
    }


def _check_valid(result: EpisodeResult, where: str) -> None:
    if not isinstance(result.reward, Scored):
        got, do = f"{result.reward.cause}: {result.reward.reason}", "leave the rollout out"
        raise EnvFailure.of("reward of the episode", "be valid", got, where=where, do=do)


def _template_of(config: EnvgymTasksetConfig | EnvgymTaskData) -> EnvTemplate:
    """Return the environment of a config or a task. Raises: as `envgym.make`."""
    settings: dict[str, Any] = dict(config.settings)
    if config.max_turns is not None:
        settings["max_turns"] = config.max_turns
    return _made(config.env, canonical(settings))


@cache
def _made(env_id: str, settings: str) -> EnvTemplate:
    return EnvTemplate(env_id, partial(maker(env_id), **json.loads(settings)))
